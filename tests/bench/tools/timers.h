/* Moments that are due, the next one first. A timer lies inside what it belongs to. */
#ifndef TIMERS_H
#define TIMERS_H

#include <stdbool.h>
#include <stdint.h>

struct timer {
    uint64_t due_us;
    int place; /* in the heap, counted from 1; 0 while it is not set */
    void *owner;
};

void timer_set(struct timer *timer, uint64_t due_us);
void timer_clear(struct timer *timer);

/* The next one, NULL of none. */
struct timer *timer_next(void);

#endif
