// SPDX-License-Identifier: Apache-2.0
// The state that the stub of NVML answers from. All but the entry of a function is done under the lock.
#ifndef SCENARIO_H
#define SCENARIO_H
#include <pthread.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED };
enum { NOT_FOUND = 6, INSUFFICIENT_SIZE, LIBRARY_NOT_FOUND = 12 };
enum { DEVICES = 32, METRICS = 512, LATER_LINES = 64, THREADS = 64, LINE = 400, MIG_PLACES = 7 };

#define FUNCTIONS(F)                                                                                                   \
    F(nvmlInitWithFlags) F(nvmlShutdown) F(nvmlSystemGetDriverVersion) F(nvmlDeviceGetCount_v2)                        \
    F(nvmlDeviceGetHandleByIndex_v2) F(nvmlDeviceGetMigMode) F(nvmlDeviceGetMaxMigDeviceCount)                         \
    F(nvmlDeviceGetMigDeviceHandleByIndex) F(nvmlDeviceGetGpuInstanceId) F(nvmlDeviceGetPciInfo_v3)                    \
    F(nvmlDeviceGetMemoryInfo) F(nvmlDeviceGetName) F(nvmlDeviceGetUUID) F(nvmlDeviceGetEnforcedPowerLimit)            \
    F(nvmlDeviceGetCurrPcieLinkGeneration) F(nvmlDeviceGetCurrPcieLinkWidth)                                           \
    F(nvmlDeviceGetComputeRunningProcesses_v3) F(nvmlDeviceGetUtilizationRates) F(nvmlDeviceGetPowerUsage)             \
    F(nvmlDeviceGetTotalEnergyConsumption) F(nvmlDeviceGetTemperature) F(nvmlDeviceGetClockInfo)                       \
    F(nvmlDeviceGetCurrentClocksThrottleReasons) F(nvmlGpmQueryDeviceSupport) F(nvmlGpmSampleAlloc)                    \
    F(nvmlGpmSampleFree) F(nvmlGpmSampleGet) F(nvmlGpmMigSampleGet) F(nvmlGpmMetricsGet)
#define NUMBERS(F)                                                                                                     \
    F(utilization) F(memory_used) F(memory_total) F(power_mw) F(idle_power_mw) F(power_limit_mw) F(energy_mj)          \
    F(temperature) F(sm_clock) F(throttle) F(pcie_generation) F(pcie_width) F(mig) F(slice_of) F(instance)             \
    F(gpm_supported) F(busy_seconds) F(idle_seconds) F(busy_samples) F(idle_samples)           \
    F(stale)

#define FUNCTION_ID(name) ID_##name,
#define NUMBER_ID(name) NUMBER_##name,
enum { FUNCTIONS(FUNCTION_ID) FUNCTION_COUNT };
enum { NUMBERS(NUMBER_ID) NUMBER_COUNT };

typedef struct {
    int present;
    // Wide enough for all bits set in 64.
    long double number[NUMBER_COUNT];
    char name[96], uuid[96], bus_id[32], pids[200];
    double metric[METRICS];
    int metric_error[METRICS];
    int error[FUNCTION_COUNT];
    long memory_calls;
} Device;

typedef struct {
    Device *device;
    double seconds;
} GpmSample;

typedef struct {
    int loaded, references, gpm_samples, thread_count, later_count;
    double origin_seconds, fixed_seconds;
    char driver_version[80];
    Device device[DEVICES];
    int error[FUNCTION_COUNT];
    volatile int slow_ms[FUNCTION_COUNT], hang[FUNCTION_COUNT];
    long calls[FUNCTION_COUNT], samples;
    long thread[THREADS];
    struct {
        long samples;
        char line[LINE];
    } later[LATER_LINES];
} World;

extern World world;
extern pthread_mutex_t lock;

double now_seconds(void);
// Apply one line of a scenario; false if it is not understood.
int apply(const char *line);
void note_thread(void);
// Count a reading of the device's memory, the first call of each sample, and apply the lines that were put off to it.
void count_sample(Device *device);
int nvml_stub_load(const char *path);
#endif
