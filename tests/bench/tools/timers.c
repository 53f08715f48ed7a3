#include "timers.h"

#include "common.h"

static struct timer **heap; /* from place 1 on: each is due no later than the two at twice its place */
static int count, capacity;

static void put(struct timer *timer, int place)
{
    heap[place] = timer;
    timer->place = place;
}

static void settle(struct timer *timer, int place)
{
    while (place > 1 && heap[place / 2]->due_us > timer->due_us) {
        put(heap[place / 2], place);
        place /= 2;
    }
    for (int child = 2 * place; child <= count; child = 2 * place) {
        if (child < count && heap[child + 1]->due_us < heap[child]->due_us)
            child++;
        if (heap[child]->due_us >= timer->due_us)
            break;
        put(heap[child], place);
        place = child;
    }
    put(timer, place);
}

void timer_set(struct timer *timer, uint64_t due_us)
{
    timer->due_us = due_us;
    if (timer->place == 0) {
        if (count + 1 >= capacity) {
            capacity = capacity > 0 ? 2 * capacity : 1024;
            heap = grown(heap, (size_t)capacity * sizeof *heap);
        }
        timer->place = ++count;
    }
    settle(timer, timer->place);
}

void timer_clear(struct timer *timer)
{
    int place = timer->place;
    if (place == 0)
        return;
    timer->place = 0;
    struct timer *last = heap[count--];
    if (last != timer)
        settle(last, place);
}

struct timer *timer_next(void)
{
    return count > 0 ? heap[1] : NULL;
}
