/* Stands for NVIDIA's libnvidia-ml.so.1: answers what the file $NBMN_NVML_STANDIN says.

   A line is "OWNER WHAT NUMBER": OWNER is a device's UUID, or "driver"; WHAT followed by "!"
   makes the call fail with that number. What no line tells is not supported. The file is read
   at every call, so that it may change meanwhile. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define LONGEST 64
#define DEVICES 32

enum { SUCCESS = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };

typedef char device[LONGEST];
typedef unsigned long long number;

static device known[DEVICES];
static int inits;

static int look(const char *owner, const char *what, number *value) {
    FILE *file = fopen(getenv("NBMN_NVML_STANDIN"), "r");
    char whose[LONGEST], name[LONGEST], failing[LONGEST + 1];
    number told;
    int status = UNSUPPORTED;
    snprintf(failing, sizeof failing, "%s!", what);
    while (file && fscanf(file, "%63s %63s %llu", whose, name, &told) == 3) {
        if (strcmp(whose, owner))
            continue;
        if (!strcmp(name, failing) || !strcmp(name, "all!")) {
            status = (int)told;
            break;
        }
        if (!strcmp(name, what)) {
            *value = told;
            status = SUCCESS;
        }
    }
    if (file)
        fclose(file);
    return status;
}

static int asked(void *handle, const char *what, unsigned *out) {
    number value = 0;
    int status = inits ? look(handle, what, &value) : 1;
    if (status == SUCCESS)
        *out = (unsigned)value;
    return status;
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    number value = 0;
    int status = look("driver", "init", &value);
    (void)flags;
    if (status != SUCCESS && status != UNSUPPORTED)
        return status;
    inits++;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(int status) {
    return status == 28 ? "No GPU found (the stand-in says)" : "Some error (the stand-in says)";
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    number value = 0;
    int status = look(uuid, "exists", &value);
    if (status != SUCCESS)
        return status == UNSUPPORTED ? NOT_FOUND : status;
    for (int i = 0; i < DEVICES; i++) {
        if (!known[i][0])
            snprintf(known[i], LONGEST, "%s", uuid);
        if (!strcmp(known[i], uuid)) {
            *handle = known[i];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

/* A device that is known by its bus id is the owner of lines by that name. */
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
    return nvmlDeviceGetHandleByUUID(bus, handle);
}

/* All parts are of one GPU, which is called GPU-whole. */
EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **parent) {
    static device whole;
    if (strncmp(handle, "MIG-", 4))
        return INVALID;
    snprintf(whole, sizeof whole, "GPU-whole");
    *parent = whole;
    return SUCCESS;
}

struct memory {
    unsigned version;
    number total, reserved, free, used;
};

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory *memory) {
    int status = look(handle, "total", &memory->total);
    if (memory->version != (sizeof *memory | 2u << 24))
        return 25;
    if (status == SUCCESS)
        status = look(handle, "used", &memory->used);
    memory->free = memory->total - memory->used;
    return status;
}

EXPORT int nvmlDeviceGetUtilizationRates(void *handle, unsigned *rates) {
    return asked(handle, "utilisation", rates);
}

EXPORT int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *degrees) {
    return sensor ? INVALID : asked(handle, "temperature", degrees);
}

/* Only where a line says "temperature-v": drivers before CUDA 13 lack it. */
EXPORT int nvmlDeviceGetTemperatureV(void *handle, unsigned *asked_and_told) {
    return asked(handle, "temperature-v", asked_and_told + 2);
}

EXPORT int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) {
    char what[LONGEST];
    snprintf(what, sizeof what, "link-%u", link);
    return asked(handle, what, active);
}

EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned *generation) {
    return asked(handle, "pcie-generation", generation);
}

EXPORT int nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *width) {
    return asked(handle, "pcie-width", width);
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(void *handle, number *reasons) {
    return look(handle, "reasons", reasons);
}

struct process {
    unsigned pid;
    number used;
    unsigned instance, compute;
};

/* Processes are "process-0-pid", "process-0-used" and so on; one without memory tells none. */
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(
    void *handle, unsigned *count, struct process *processes) {
    char what[LONGEST];
    number value = 0;
    unsigned there = 0;
    for (;; there++) {
        snprintf(what, sizeof what, "process-%u-pid", there);
        int status = look(handle, what, &value);
        if (status == UNSUPPORTED)
            break;
        if (status != SUCCESS)
            return status;
        if (processes && there < *count) {
            processes[there].pid = (unsigned)value;
            snprintf(what, sizeof what, "process-%u-used", there);
            if (look(handle, what, &value) != SUCCESS)
                value = ~0ULL;
            processes[there].used = value;
        }
    }
    int small = there > *count;
    *count = there;
    return small ? TOO_SMALL : SUCCESS;
}
