// SPDX-License-Identifier: Apache-2.0
// The part of CUDA's driver library that keras_gpu_watch calls, and the environment variables that it obeys.
// Its devices are the lines of the file that CUDA_STUB_SCENARIO names, in PCI order: "UUID BUS_ID SPEED".
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, INVALID_VALUE, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE, NOT_SUPPORTED = 801 };
enum { DEVICES = 32 };

typedef struct {
    char uuid[64], bus_id[32];
    int speed;
} Device;

static Device device[DEVICES], *visible[DEVICES];
static int device_count, visible_count, initialized;

static int fastest_first(const void *left, const void *right) {
    const Device *a = *(Device *const *)left, *b = *(Device *const *)right;
    return a->speed != b->speed ? b->speed - a->speed : (a > b) - (a < b);
}

// The one device that an entry of CUDA_VISIBLE_DEVICES names: by number, or by the beginning of its UUID.
static Device *named(const char *entry, Device **ordered) {
    Device *found = NULL;
    if (isdigit((unsigned char)*entry)) return atoi(entry) < device_count ? ordered[atoi(entry)] : NULL;
    if (strncmp(entry, "GPU-", 4) && strncmp(entry, "MIG-", 4)) return NULL;
    for (int i = 0; i < device_count; i++) {
        if (strncmp(ordered[i]->uuid, entry, strlen(entry))) continue;
        if (found) return NULL;
        found = ordered[i];
    }
    return found;
}

int cuInit(unsigned flags) {
    const char *path = getenv("CUDA_STUB_SCENARIO"), *order = getenv("CUDA_DEVICE_ORDER");
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    Device *ordered[DEVICES];
    char entries[1024], *rest = entries;
    FILE *file = fopen(path ? path : "", "r");
    (void)flags;
    device_count = visible_count = initialized = 0;
    while (file && device_count < DEVICES) {
        Device *next = &device[device_count];
        if (fscanf(file, "%63s %31s %d", next->uuid, next->bus_id, &next->speed) != 3) break;
        ordered[device_count++] = next;
    }
    if (file) fclose(file);
    if (!order || strcmp(order, "PCI_BUS_ID")) qsort(ordered, device_count, sizeof *ordered, fastest_first);
    if (!wanted) memcpy(visible, ordered, sizeof visible), visible_count = device_count;
    snprintf(entries, sizeof entries, "%s", wanted ? wanted : "");
    // Whatever follows an entry that names no device is not looked at.
    for (char *entry; wanted && (entry = strsep(&rest, ",")); visible_count++)
        if (!(visible[visible_count] = named(entry, ordered))) break;
    initialized = visible_count > 0;
    return initialized ? SUCCESS : NO_DEVICE;
}

int cuDeviceGetCount(int *count) {
    *count = visible_count;
    return initialized ? SUCCESS : NOT_INITIALIZED;
}

int cuDeviceGet(int *handle, int ordinal) {
    *handle = ordinal;
    return !initialized ? NOT_INITIALIZED : ordinal < visible_count ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetUuid_v2(unsigned char *bytes, int handle) {
    if (getenv("CUDA_STUB_NO_UUID")) return NOT_SUPPORTED;
    const char *digit = visible[handle]->uuid + 4;
    for (int i = 0; i < 16; i++, digit += 2) {
        if (*digit == '-') digit++;
        unsigned byte = 0;
        if (sscanf(digit, "%2x", &byte) != 1) return INVALID_VALUE;
        bytes[i] = byte;
    }
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *text, int size, int handle) {
    return snprintf(text, size, "%s", visible[handle]->bus_id) < size ? SUCCESS : INVALID_VALUE;
}
