/* Keeps a processor from halting: see yoked.train.vcpus. No PAUSE, of which a hypervisor takes many
   for a sign that the processor is not needed. */

void stay_awake(const volatile int *over)
{
    while (!*over)
        ;
}
