/* Keeps a processor from halting while its rank waits: see yoked.train.vcpus. While the rank computes
   the thread sleeps: even the lowest priority has a few thousandths of a processor's time. */

enum { COMPUTING = 0, WAITING = 1 };

#ifdef __linux__

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Until `moment` is neither; whoever changes it uses set_moment. */
void stay_awake(int *moment)
{
    for (;;) {
        switch (__atomic_load_n(moment, __ATOMIC_ACQUIRE)) {
        case COMPUTING:
            syscall(SYS_futex, moment, FUTEX_WAIT_PRIVATE, COMPUTING, 0, 0, 0);
            break;
        case WAITING:
            /* No PAUSE, of which a hypervisor takes many for a sign that the processor is not needed. */
            while (__atomic_load_n(moment, __ATOMIC_RELAXED) == WAITING)
                ;
            break;
        default:
            return;
        }
    }
}

void set_moment(int *moment, int now)
{
    __atomic_store_n(moment, now, __ATOMIC_RELEASE);
    if (now != COMPUTING)
        syscall(SYS_futex, moment, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
}

#endif
