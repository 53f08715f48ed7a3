#include "histogram.h"

#include <stdio.h>

/* Below FINE each value has a place of its own; above, each doubling is divided into FINE parts. */
static int place_of(uint64_t us)
{
    if (us < FINE)
        return (int)us;
    int doublings = 63 - __builtin_clzll(us) - 10;
    int place = (doublings + 1) * FINE + (int)((us >> doublings) - FINE);
    return place < FINE * OCTAVES ? place : FINE * OCTAVES - 1;
}

static uint64_t middle_of(int place)
{
    if (place < FINE)
        return (uint64_t)place;
    int doublings = place / FINE - 1;
    return ((uint64_t)(FINE + place % FINE) << doublings) + (((uint64_t)1 << doublings) >> 1);
}

void histogram_add(struct histogram *histogram, uint64_t us)
{
    histogram->count++;
    histogram->counts[place_of(us)]++;
    if (us > histogram->most)
        histogram->most = us;
}

uint64_t histogram_at(const struct histogram *histogram, double share)
{
    uint64_t wanted = (uint64_t)((double)histogram->count * share + 0.999999), seen = 0;
    if (wanted == 0)
        wanted = 1;
    for (int place = 0; place < FINE * OCTAVES; place++) {
        seen += histogram->counts[place];
        if (seen >= wanted) {
            uint64_t middle = middle_of(place);
            return middle < histogram->most ? middle : histogram->most;
        }
    }
    return histogram->most;
}

void histogram_print(const char *name, const struct histogram *histogram)
{
    printf("\"%s\": {\"count\": %llu, \"p50\": %llu, \"p99\": %llu, \"max\": %llu}", name,
           (unsigned long long)histogram->count, (unsigned long long)histogram_at(histogram, 0.5),
           (unsigned long long)histogram_at(histogram, 0.99), (unsigned long long)histogram->most);
}
