"""What every room may use: wording, files, launchers, processors, agreement of ranks."""
