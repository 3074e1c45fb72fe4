/* Preloaded into the ranks: who would give up the core for a moment sleeps for a moment instead.
 *
 * The hosts of an emulated cluster share the cores of one machine.  A rank that looks for messages
 * without pause, whether it yields or not, then holds up another one for as long as the scheduler
 * likes, milliseconds; one that sleeps does not, and the scheduler prefers those that slept. */
#include <sys/prctl.h>
#include <time.h>

__attribute__((constructor)) static void punctual(void)
{
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); /* ns */
}

int sched_yield(void)
{
    struct timespec moment = {0, 50000};
    nanosleep(&moment, 0);
    return 0;
}
