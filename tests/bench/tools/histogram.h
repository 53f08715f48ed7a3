/* Times in microseconds, counted so that percentiles are exact to 0.1 %. */
#ifndef HISTOGRAM_H
#define HISTOGRAM_H

#include <stdint.h>

enum { FINE = 1024, OCTAVES = 32 };

struct histogram {
    uint64_t count, most, counts[FINE * OCTAVES];
};

void histogram_add(struct histogram *histogram, uint64_t us);

/* The value below which that share of all lies; 0 of none. */
uint64_t histogram_at(const struct histogram *histogram, double share);

/* "NAME": {"count", "p50", "p99", "max"}, without a comma. */
void histogram_print(const char *name, const struct histogram *histogram);

#endif
