// SPDX-License-Identifier: Apache-2.0
// The part of NVML that keras_gpu_watch calls, answering from a scenario.
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "scenario.h"

static void sleep_ms(int ms) {
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&pause, NULL);
}

// What the functions share --------------------------------------------------------------------------------------------

// Every function begins here, and holds the lock from here to its LEAVE.
static int enter(int function, Device *device) {
    if (world.slow_ms[function]) sleep_ms(world.slow_ms[function]);
    pthread_mutex_lock(&lock);
    world.calls[function]++;
    note_thread();
    pthread_mutex_unlock(&lock);
    while (world.hang[function]) sleep_ms(2);
    pthread_mutex_lock(&lock);
    if (function != ID_nvmlInitWithFlags && !world.references) return UNINITIALIZED;
    if (function == ID_nvmlDeviceGetMemoryInfo && device) count_sample(device);
    if (world.error[function]) return world.error[function];
    if (function == ID_nvmlDeviceGetHandleByIndex_v2 && device) device->number[NUMBER_stale] = 0;
    if (device && device->number[NUMBER_stale]) return INVALID_ARGUMENT;
    return device ? device->error[function] : SUCCESS;
}

#define LEAVE(code)                                                                                                    \
    do {                                                                                                               \
        int code_ = (code);                                                                                            \
        pthread_mutex_unlock(&lock);                                                                                   \
        return code_;                                                                                                  \
    } while (0)
#define ENTER(name, device)                                                                                            \
    do {                                                                                                               \
        int error_ = enter(ID_##name, device);                                                                         \
        if (error_) LEAVE(error_);                                                                                     \
    } while (0)
#define NUMBER(device, name) ((unsigned long long)(device)->number[NUMBER_##name])

static int is_slice(const Device *device) { return device->number[NUMBER_slice_of] >= 0; }

static Device *find(int slice_of, unsigned index) {
    for (int i = 0; i < DEVICES; i++)
        if (world.device[i].present && world.device[i].number[NUMBER_slice_of] == slice_of && !index--)
            return &world.device[i];
    return NULL;
}

// How much of the time since the scenario began the device was busy: all of it, or its duty cycle's share.
static double busy_until(const Device *device, double seconds) {
    double busy = device->number[NUMBER_busy_seconds], period = busy + device->number[NUMBER_idle_seconds];
    double samples = device->number[NUMBER_busy_samples];
    if (samples) return seconds * samples / (samples + device->number[NUMBER_idle_samples]);
    if (!period) return seconds;
    return floor(seconds / period) * busy + fmin(fmod(seconds, period), busy);
}

static int is_busy(const Device *device) {
    long busy = NUMBER(device, busy_samples), period = busy + NUMBER(device, idle_samples);
    double seconds = now_seconds(), cycle = device->number[NUMBER_busy_seconds] + device->number[NUMBER_idle_seconds];
    // The first call for the memory is no sample: it asks for the size.
    if (busy) return (device->memory_calls - 2 + period) % period < busy;
    return !cycle || fmod(seconds, cycle) < device->number[NUMBER_busy_seconds];
}

// NVML ----------------------------------------------------------------------------------------------------------------

int nvmlInitWithFlags(unsigned flags) {
    const char *path = getenv("NVML_STUB_SCENARIO");
    (void)flags;
    if (!world.loaded && path && nvml_stub_load(path)) {
        fprintf(stderr, "%s: not a scenario\n", path);
        abort();
    }
    ENTER(nvmlInitWithFlags, NULL);
    if (!world.loaded) LEAVE(LIBRARY_NOT_FOUND);
    world.references++;
    LEAVE(SUCCESS);
}

int nvmlShutdown(void) {
    ENTER(nvmlShutdown, NULL);
    world.references--;
    LEAVE(SUCCESS);
}

const char *nvmlErrorString(int code) {
    (void)code;
    return "words of the stub";
}

#define GET_TEXT(function, device, text, buffer, size)                                                                 \
    ENTER(function, device);                                                                                           \
    LEAVE((unsigned)snprintf(buffer, size, "%s", text) < size ? SUCCESS : INSUFFICIENT_SIZE)

int nvmlSystemGetDriverVersion(char *buffer, unsigned size) {
    GET_TEXT(nvmlSystemGetDriverVersion, NULL, world.driver_version, buffer, size);
}
int nvmlDeviceGetName(Device *device, char *buffer, unsigned size) {
    GET_TEXT(nvmlDeviceGetName, device, device->name, buffer, size);
}
int nvmlDeviceGetUUID(Device *device, char *buffer, unsigned size) {
    GET_TEXT(nvmlDeviceGetUUID, device, device->uuid, buffer, size);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(nvmlDeviceGetCount_v2, NULL);
    for (*count = 0; find(-1, *count); ++*count) {}
    LEAVE(SUCCESS);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    Device *found = find(-1, index);
    ENTER(nvmlDeviceGetHandleByIndex_v2, found);
    *device = found;
    LEAVE(found ? SUCCESS : INVALID_ARGUMENT);
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *parent, unsigned index, Device **device) {
    ENTER(nvmlDeviceGetMigDeviceHandleByIndex, parent);
    *device = find(parent - world.device, index);
    LEAVE(*device ? SUCCESS : NOT_FOUND);
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) {
    ENTER(nvmlDeviceGetMaxMigDeviceCount, device);
    *count = MIG_PLACES;
    LEAVE(SUCCESS);
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    ENTER(nvmlDeviceGetMigMode, device);
    *current = *pending = NUMBER(device, mig);
    LEAVE(SUCCESS);
}

int nvmlDeviceGetGpuInstanceId(Device *device, unsigned *id) {
    ENTER(nvmlDeviceGetGpuInstanceId, device);
    *id = NUMBER(device, instance);
    LEAVE(is_slice(device) ? SUCCESS : NOT_SUPPORTED);
}

typedef struct {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *info) {
    ENTER(nvmlDeviceGetPciInfo_v3, device);
    memset(info, 0, sizeof *info);
    memcpy(info->bus_id, device->bus_id, sizeof info->bus_id);
    LEAVE(SUCCESS);
}

int nvmlDeviceGetMemoryInfo(Device *device, unsigned long long memory[3]) {
    ENTER(nvmlDeviceGetMemoryInfo, device);
    memory[0] = NUMBER(device, memory_total);
    memory[2] = NUMBER(device, memory_used);
    memory[1] = memory[0] - memory[2];
    LEAVE(SUCCESS);
}

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} Process;

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *processes) {
    unsigned room = *count, length = 0;
    ENTER(nvmlDeviceGetComputeRunningProcesses_v3, device);
    char pids[sizeof device->pids], *rest = NULL;
    memcpy(pids, device->pids, sizeof pids);
    for (char *pid = strtok_r(pids, " ", &rest); pid; pid = strtok_r(NULL, " ", &rest), length++)
        if (processes && length < room)
            processes[length] = (Process){.pid = strcmp(pid, "self") ? atoi(pid) : getpid(), .memory = 1 << 20};
    *count = length;
    LEAVE(length > room ? INSUFFICIENT_SIZE : SUCCESS);
}

// A slice has none of the numbers below.
#define GET_NUMBER(function, device, result, value)                                                                    \
    ENTER(function, device);                                                                                           \
    if (is_slice(device)) LEAVE(NOT_SUPPORTED);                                                                        \
    *result = (value);                                                                                                 \
    LEAVE(SUCCESS)

int nvmlDeviceGetUtilizationRates(Device *device, unsigned rates[2]) {
    GET_NUMBER(nvmlDeviceGetUtilizationRates, device, rates, is_busy(device) ? NUMBER(device, utilization) : 0);
}
int nvmlDeviceGetPowerUsage(Device *device, unsigned *mw) {
    GET_NUMBER(nvmlDeviceGetPowerUsage, device, mw,
               is_busy(device) ? NUMBER(device, power_mw) : NUMBER(device, idle_power_mw));
}
int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *mj) {
    double seconds = now_seconds(), busy = busy_until(device, seconds);
    double grown = busy * NUMBER(device, power_mw) + (seconds - busy) * NUMBER(device, idle_power_mw);
    GET_NUMBER(nvmlDeviceGetTotalEnergyConsumption, device, mj, NUMBER(device, energy_mj) + (unsigned long long)grown);
}
int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *celsius) {
    GET_NUMBER(nvmlDeviceGetTemperature, device, celsius, sensor ? 0 : NUMBER(device, temperature));
}
int nvmlDeviceGetClockInfo(Device *device, unsigned kind, unsigned *mhz) {
    GET_NUMBER(nvmlDeviceGetClockInfo, device, mhz, kind == 1 ? NUMBER(device, sm_clock) : 0);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *bits) {
    GET_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, device, bits, NUMBER(device, throttle));
}
int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *mw) {
    GET_NUMBER(nvmlDeviceGetEnforcedPowerLimit, device, mw, NUMBER(device, power_limit_mw));
}
int nvmlDeviceGetCurrPcieLinkGeneration(Device *device, unsigned *generation) {
    GET_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, device, generation, NUMBER(device, pcie_generation));
}
int nvmlDeviceGetCurrPcieLinkWidth(Device *device, unsigned *width) {
    GET_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, device, width, NUMBER(device, pcie_width));
}

// GPM -----------------------------------------------------------------------------------------------------------------

int nvmlGpmQueryDeviceSupport(Device *device, unsigned support[2]) {
    GET_NUMBER(nvmlGpmQueryDeviceSupport, device, &support[1], NUMBER(device, gpm_supported));
}

int nvmlGpmSampleAlloc(GpmSample **sample) {
    ENTER(nvmlGpmSampleAlloc, NULL);
    *sample = calloc(1, sizeof **sample);
    world.gpm_samples++;
    LEAVE(SUCCESS);
}

int nvmlGpmSampleFree(GpmSample *sample) {
    ENTER(nvmlGpmSampleFree, NULL);
    free(sample);
    world.gpm_samples--;
    LEAVE(SUCCESS);
}

static int take(Device *device, GpmSample *sample) {
    if (!device || !NUMBER(device, gpm_supported)) return NOT_SUPPORTED;
    *sample = (GpmSample){device, now_seconds()};
    return SUCCESS;
}

int nvmlGpmSampleGet(Device *device, GpmSample *sample) {
    ENTER(nvmlGpmSampleGet, device);
    LEAVE(take(device, sample));
}

int nvmlGpmMigSampleGet(Device *parent, unsigned instance, GpmSample *sample) {
    ENTER(nvmlGpmMigSampleGet, parent);
    Device *slice = NULL;
    for (int i = 0; (slice = find(parent - world.device, i)) && NUMBER(slice, instance) != instance; i++) {}
    LEAVE(take(slice, sample));
}

typedef struct {
    unsigned id;
    int code;
    double value;
    const char *words[3];
} Metric;

typedef struct {
    unsigned version, count;
    GpmSample *older, *newer;
    Metric metric[];
} MetricsRequest;

int nvmlGpmMetricsGet(MetricsRequest *request) {
    GpmSample *older = request->older, *newer = request->newer;
    ENTER(nvmlGpmMetricsGet, newer->device);
    if (request->version != 1 || !older->device || older->device != newer->device) LEAVE(INVALID_ARGUMENT);
    Device *device = newer->device;
    double seconds = newer->seconds - older->seconds;
    double busy = busy_until(device, newer->seconds) - busy_until(device, older->seconds);
    for (unsigned i = 0; i < request->count; i++) {
        Metric *metric = &request->metric[i];
        metric->code = metric->id < METRICS ? device->metric_error[metric->id] : INVALID_ARGUMENT;
        // A mean over no time is no number, as from the driver.
        metric->value = metric->code ? 0 : device->metric[metric->id] * (busy / seconds);
    }
    LEAVE(SUCCESS);
}
