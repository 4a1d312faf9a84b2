// pause: block for ever, reap children (as PID 1 of a pod sandbox or of a local cluster), exit 0 on INT/TERM.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void stop(int s) { (void)s; _exit(0); }
static void reap(int s) { (void)s; while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) {
    struct sigaction a = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP | SA_RESTART};
    sigaction(SIGCHLD, &a, 0);
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    for (;;) pause();
}
