"""Measuring collectives: sizes, repetitions, statistics, results on disk, tables and pages.

sizes, stats, records, table    pure, without MPI
runs                            files of several runs, of one machine
environment                     where and how a run was made
start, watchdog, workload       what a measurement is made of
engine                          the measurement
page                            results as a web page
"""
