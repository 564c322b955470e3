/* A time of day that jumps: loaded before the C library, it adds the seconds in the file CHAOS_CLOCK to every answer.

   What waits until a time of day waits until the same time by the kernel's clock, which does not jump: else every wait
   of Ray's, whose deadlines are such times, would take an hour more. One that is in progress keeps its length. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *offset;
static int (*real)(clockid_t, struct timespec *);
static int (*real_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static long (*real_syscall)(long, ...);

/* Times by the other clock, which counts from the start of the machine, are less. */
static const time_t FIRST_TIME_OF_DAY = 1000000000;

static void find(void) {
    real = dlsym(RTLD_NEXT, "clock_gettime");
    real_syscall = dlsym(RTLD_NEXT, "syscall");
    /* The C library has an older one of this name, which it would find first. */
    real_wait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real_wait) real_wait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
}

__attribute__((constructor)) static void begin(void) {
    find();
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *page = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
        if (page != MAP_FAILED) offset = page;
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!real) find();
    int result = real(clock, time);
    if (!result && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += *offset;
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}

static struct timespec by_kernel(const struct timespec *until) {
    struct timespec time = *until;
    if (offset && time.tv_sec > FIRST_TIME_OF_DAY) time.tv_sec -= *offset;
    return time;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    if (!real_wait) find();
    struct timespec time = by_kernel(until);
    return real_wait(condition, mutex, &time);
}

long syscall(long number, ...) {
    if (!real_syscall) find();
    long words[6];
    va_list given;
    va_start(given, number);
    for (int index = 0; index < 6; index++) words[index] = va_arg(given, long);
    va_end(given);
    struct timespec time;
    int waits = number == SYS_futex && (words[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && words[3];
    if (waits && (words[1] & FUTEX_CLOCK_REALTIME)) {
        time = by_kernel((const struct timespec *)words[3]);
        words[3] = (long)&time;
    }
    return real_syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
