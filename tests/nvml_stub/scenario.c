// SPDX-License-Identifier: Apache-2.0
// Reads a scenario, whose lines tests/nvml_scenarios.py writes, and answers the tests' own questions.
#define _GNU_SOURCE
#include "scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TEXT(name) #name,
static const char *const function_names[] = {FUNCTIONS(TEXT)};
static const char *const number_names[] = {NUMBERS(TEXT)};
World world;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

double now_seconds(void) {
    return world.fixed_seconds >= 0 ? world.fixed_seconds : clock_seconds() - world.origin_seconds;
}

static int place_of(const char *name, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (!strcmp(name, names[i])) return i;
    return -1;
}

// A function's name, or * for every one but init and shutdown.
static int set_functions(volatile int *table, const char *name, const char *value) {
    int place = place_of(name, function_names, FUNCTION_COUNT);
    if (place >= 0) table[place] = atoi(value);
    if (place >= 0 || strcmp(name, "*")) return place >= 0;
    for (int i = ID_nvmlShutdown + 1; i < FUNCTION_COUNT; i++) table[i] = atoi(value);
    return 1;
}

static int set_device(Device *device, const char *key, const char *value) {
    if (!device->present) {
        device->present = 1;
        device->number[NUMBER_slice_of] = -1;
        for (int i = 0; i < METRICS; i++) device->metric_error[i] = NOT_SUPPORTED;
    }
    int metric = 0;
    if (sscanf(key, "metric.%d", &metric) == 1 && metric >= 0 && metric < METRICS) {
        device->metric[metric] = strtod(value, NULL);
        device->metric_error[metric] = SUCCESS;
        return 1;
    }
    if (sscanf(key, "metric_error.%d", &metric) == 1 && metric >= 0 && metric < METRICS) {
        device->metric_error[metric] = atoi(value);
        return 1;
    }
    if (!strncmp(key, "error.", 6)) return set_functions(device->error, key + 6, value);
    if (!strcmp(key, "name")) return snprintf(device->name, sizeof device->name, "%s", value) >= 0;
    if (!strcmp(key, "uuid")) return snprintf(device->uuid, sizeof device->uuid, "%s", value) >= 0;
    if (!strcmp(key, "bus_id")) return snprintf(device->bus_id, sizeof device->bus_id, "%s", value) >= 0;
    if (!strcmp(key, "pids")) return snprintf(device->pids, sizeof device->pids, "%s", value) >= 0;
    int place = place_of(key, number_names, NUMBER_COUNT);
    if (place >= 0) device->number[place] = strtold(value, NULL);
    return place >= 0;
}

// False for a line that is not understood: a scenario with a slip of the pen must not pass for another one.
int apply(const char *line) {
    char key[LINE] = "", value[LINE] = "";
    int index = 0, skipped = 0;
    long samples = 0;
    if (sscanf(line, "@%ld %n", &samples, &skipped) == 1) {
        if (world.later_count == LATER_LINES) return 0;
        world.later[world.later_count].samples = samples;
        snprintf(world.later[world.later_count++].line, LINE, "%s", line + skipped);
        return 1;
    }
    if (sscanf(line, " %399[^ =\n] = %399[^\n]", key, value) < 1) return 1;
    if (sscanf(key, "card.%d.%n", &index, &skipped) == 1 && skipped && index >= 0 && index < DEVICES)
        return set_device(&world.device[index], key + skipped, value);
    if (!strncmp(key, "error.", 6)) return set_functions(world.error, key + 6, value);
    if (!strncmp(key, "slow_ms.", 8)) return set_functions(world.slow_ms, key + 8, value);
    if (!strncmp(key, "hang.", 5)) return set_functions(world.hang, key + 5, value);
    if (strcmp(key, "driver_version")) return 0;
    return snprintf(world.driver_version, sizeof world.driver_version, "%s", value) >= 0;
}

void note_thread(void) {
    long id = syscall(SYS_gettid);
    for (int i = 0; i < world.thread_count; i++)
        if (world.thread[i] == id) return;
    if (world.thread_count < THREADS) world.thread[world.thread_count++] = id;
}

void count_sample(Device *device) {
    if (++device->memory_calls <= world.samples) return;
    world.samples = device->memory_calls;
    for (int i = 0; i < world.later_count; i++)
        if (world.later[i].samples == world.samples) apply(world.later[i].line);
}

// What the tests call -------------------------------------------------------------------------------------------------

// Start afresh from a scenario; NULL: as if there were no driver. Returns the number of the first bad line, else 0.
int nvml_stub_load(const char *path) {
    char line[LINE];
    int number = 0, bad = 0;
    FILE *file = path ? fopen(path, "r") : NULL;
    pthread_mutex_lock(&lock);
    memset(&world, 0, sizeof world);
    world.origin_seconds = clock_seconds();
    world.fixed_seconds = -1;
    world.loaded = file != NULL;
    snprintf(world.driver_version, sizeof world.driver_version, "580.65.06");
    while (file && !bad && fgets(line, sizeof line, file)) {
        number++;
        if (!apply(line)) bad = number;
    }
    pthread_mutex_unlock(&lock);
    if (file) fclose(file);
    return path && !file ? -1 : bad;
}

int nvml_stub_set(const char *line) {
    pthread_mutex_lock(&lock);
    int understood = apply(line);
    pthread_mutex_unlock(&lock);
    return understood;
}

// The scenario's own clock: what energy, duty cycles and GPM go by. Negative: the real one.
void nvml_stub_set_seconds(double seconds) { world.fixed_seconds = seconds; }
int nvml_stub_references(void) { return world.references; }
int nvml_stub_gpm_samples(void) { return world.gpm_samples; }
int nvml_stub_threads(void) { return world.thread_count; }
long nvml_stub_calls(const char *name) {
    int place = place_of(name, function_names, FUNCTION_COUNT);
    return place < 0 ? -1 : world.calls[place];
}
