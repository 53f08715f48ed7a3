/* A libnvidia-ml.so.1 that says what a script says.

   FAKE_NVML_SCRIPT names a file that is read anew at every call; lines are KEY=VALUE, the last one of a key counts:

       init=0  driver=580.95.05  gpus=2
       gpu.util=97          of every GPU
       gpu1.util=0          of one GPU, wins over the former
       gpu.name=!3          an error code of NVML instead of a value
       gpu.power=~2.5 97000 2.5 seconds first
       gpu.util=...         never returns

   A figure without a line is not supported (3). KEYs of a GPU: handle uuid name pci util memutil power limit temp used
   total pids (a,b) recovery rows (a,b,c,d) ecc throttle. Built by tests/support/fakenvml.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

static int find(const char *key, char *value, size_t size)
{
    const char *path = getenv("FAKE_NVML_SCRIPT");
    char line[1024];
    int found = 0;
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        char *equals = strchr(line, '=');
        line[strcspn(line, "\n")] = 0;
        if (!equals)
            continue;
        *equals = 0;
        if (strcmp(line, key) == 0) {
            snprintf(value, size, "%s", equals + 1);
            found = 1;
        }
    }
    fclose(file);
    return found;
}

/* The value of a key in `value`, after what the script wants to happen before; NVML's code. */
static int obey(const char *key, char *value, size_t size)
{
    if (!find(key, value, size))
        return NOT_SUPPORTED;
    if (strcmp(value, "...") == 0)
        for (;;)
            pause();
    if (value[0] == '~') {
        char *rest;
        double seconds = strtod(value + 1, &rest);
        struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
        nanosleep(&time, NULL);
        memmove(value, rest + (*rest == ' '), strlen(rest + (*rest == ' ')) + 1);
    }
    return value[0] == '!' ? atoi(value + 1) : SUCCESS;
}

/* A handle is the index and one. */
static int of_gpu(void *device, const char *key, char *value, size_t size)
{
    char own[64], every[64];
    int index = (int)(long)device - 1;
    snprintf(own, sizeof own, "gpu%d.%s", index, key);
    snprintf(every, sizeof every, "gpu.%s", key);
    return obey(find(own, value, size) ? own : every, value, size);
}

static int text(void *device, const char *key, char *buffer, unsigned length)
{
    char value[1024];
    int code = of_gpu(device, key, value, sizeof value);
    if (code == SUCCESS)
        snprintf(buffer, length, "%s", value);
    return code;
}

static int number(void *device, const char *key, unsigned long long *result)
{
    char value[1024];
    int code = of_gpu(device, key, value, sizeof value);
    if (code == SUCCESS)
        *result = strtoull(value, NULL, 0);
    return code;
}

static int small(void *device, const char *key, unsigned *result)
{
    unsigned long long wide = 0;
    int code = number(device, key, &wide);
    if (code == SUCCESS)
        *result = (unsigned)wide;
    return code;
}

int nvmlInitWithFlags(unsigned flags)
{
    char value[1024];
    (void)flags;
    int code = obey("init", value, sizeof value);
    return code == NOT_SUPPORTED ? SUCCESS : code;
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code)
{
    static char words[32];
    snprintf(words, sizeof words, "Fake Error %d", code);
    return words;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    char value[1024];
    int code = obey("driver", value, sizeof value);
    if (code == SUCCESS)
        snprintf(version, length, "%s", value);
    return code;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    char value[1024];
    int code = obey("gpus", value, sizeof value);
    *count = code == SUCCESS ? (unsigned)atoi(value) : 0;
    return code == NOT_SUPPORTED ? SUCCESS : code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    char value[1024];
    *device = (void *)(long)(index + 1);
    int code = of_gpu(*device, "handle", value, sizeof value);
    return code == NOT_SUPPORTED ? SUCCESS : code;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) { return text(device, "uuid", uuid, length); }

int nvmlDeviceGetName(void *device, char *name, unsigned length) { return text(device, "name", name, length); }

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char address[32];
};

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci)
{
    memset(pci, 0, sizeof *pci);
    return text(device, "pci", pci->address, sizeof pci->address);
}

struct utilisation {
    unsigned gpu, memory;
};

int nvmlDeviceGetUtilizationRates(void *device, struct utilisation *rates)
{
    int code = small(device, "util", &rates->gpu);
    return code == SUCCESS ? small(device, "memutil", &rates->memory) : code;
}

struct memory {
    unsigned long long total, free, used;
};

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    int code = number(device, "total", &memory->total);
    if (code == SUCCESS)
        code = number(device, "used", &memory->used);
    memory->free = memory->total - memory->used;
    return code;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { return small(device, "power", milliwatts); }

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) { return small(device, "limit", milliwatts); }

int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius)
{
    (void)sensor;
    return small(device, "temp", celsius);
}

struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes)
{
    char value[1024];
    unsigned room = *count, found = 0;
    int code = of_gpu(device, "pids", value, sizeof value);
    if (code != SUCCESS)
        return code;
    for (char *word = strtok(value, ","); word; word = strtok(NULL, ",")) {
        if (processes && found < room) {
            memset(&processes[found], 0, sizeof *processes);
            processes[found].pid = (unsigned)atoi(word);
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

struct field {
    unsigned id, scope;
    long long timestamp, latency;
    int type, code;
    union {
        double real;
        unsigned number;
        unsigned long long wide;
    } value;
};

int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields)
{
    for (int i = 0; i < count; i++)
        fields[i].code = fields[i].id == 230 ? small(device, "recovery", &fields[i].value.number) : NOT_SUPPORTED;
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failed)
{
    char value[1024];
    int code = of_gpu(device, "rows", value, sizeof value);
    if (code == SUCCESS)
        sscanf(value, "%u,%u,%u,%u", correctable, uncorrectable, pending, failed);
    return code;
}

int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *count)
{
    (void)kind, (void)counter;
    return number(device, "ecc", count);
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons)
{
    return number(device, "throttle", reasons);
}
