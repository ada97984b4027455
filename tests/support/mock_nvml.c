/* libnvidia-ml, as far as the agent needs it: what it says is in the file that MOCK_NVML names, read at each call.
 *
 * First line: the version of the driver, `none` when there is none, or what a library does on a broken driver: `hangs` or
 * `crashes`. Then one GPU a line:
 *   uuid address use used total temperature milliwatts ecc pending failed reasons recovery
 * In place of the numbers: `lost`, a GPU that has fallen off the bus; `handleless`, one that cannot even be opened;
 * `old`, one of which only the temperature is known. A GPU that is not there is not counted.
 * Layouts and numbers are those of NVIDIA's nvml.h, as pynvml of nvidia-ml-py 13.615.71 has them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RECOVERY = 230, UNSIGNED_INT = 1 };
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_DRIVER = 9, LOST = 15, MOST = 64 };

typedef struct {
    char uuid[97], address[32], word[16];
    unsigned use, temperature, power, pending, failed, recovery;
    unsigned long long used, total, ecc, reasons;
} Gpu;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct {
    unsigned field, scope;
    long long time, took;
    unsigned kind, result;
    union { double real; unsigned number; unsigned long long big; } value;
} Field;
typedef struct { char legacy[16]; unsigned domain, bus, device, ids, subsystem; char address[32]; } Pci;

static Gpu gpus[MOST];
static char driver[81];
static unsigned count;
static int begun;

static void load(void) {
    char line[512];
    FILE *file = fopen(getenv("MOCK_NVML"), "r");
    count = 0;
    strcpy(driver, "none");
    if (!file) return;
    if (fgets(line, sizeof line, file)) sscanf(line, "%80s", driver);
    while (count < MOST && fgets(line, sizeof line, file)) {
        Gpu *gpu = &gpus[count];
        memset(gpu, 0, sizeof *gpu);
        int read = sscanf(line, "%96s %31s %u %llu %llu %u %u %llu %u %u %llu %u", gpu->uuid, gpu->address, &gpu->use,
                          &gpu->used, &gpu->total, &gpu->temperature, &gpu->power, &gpu->ecc, &gpu->pending,
                          &gpu->failed, &gpu->reasons, &gpu->recovery);
        if (read != 12 && sscanf(line, "%96s %31s %15s %u", gpu->uuid, gpu->address, gpu->word, &gpu->temperature) < 3)
            continue;
        count++;
    }
    fclose(file);
    while (!strcmp(driver, "hangs")) pause();
    if (!strcmp(driver, "crashes")) abort();
}

/* A handle is the GPU's place, counted from one: it stays good when the file changes. */
static int of(void *handle, Gpu **gpu) {
    unsigned long place = (unsigned long)handle;
    load();
    if (!begun) return UNINITIALIZED;
    if (!place || place > count) return LOST;
    *gpu = &gpus[place - 1];
    return strcmp((*gpu)->word, "lost") ? OK : LOST;
}

#define READ(condition, action)                      \
    Gpu *gpu;                                        \
    int bad = of(handle, &gpu);                      \
    if (bad) return bad;                             \
    if (!(condition)) return NOT_SUPPORTED;          \
    action;                                          \
    return OK;
#define NEW (!*gpu->word)

int nvmlInit_v2(void) { load(); begun = strcmp(driver, "none") != 0; return begun ? OK : NO_DRIVER; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { begun = 0; return OK; }
int nvmlDeviceGetCount_v2(unsigned *number) {
    load();
    if (!begun || !strcmp(driver, "none")) return UNINITIALIZED;
    *number = count;
    return OK;
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) { load(); snprintf(text, size, "%s", driver); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    load();
    if (index >= count) return INVALID;
    if (!strcmp(gpus[index].word, "handleless")) return LOST;
    *handle = (void *)(unsigned long)(index + 1);
    return OK;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) { READ(1, snprintf(text, size, "%s", gpu->uuid)) }
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) {
    READ(1, memset(pci, 0, sizeof *pci); snprintf(pci->address, sizeof pci->address, "%s", gpu->address))
}
int nvmlDeviceGetUtilizationRates(void *handle, Utilization *use) { READ(NEW, use->gpu = gpu->use; use->memory = 99) }
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    READ(NEW, memory->total = gpu->total; memory->used = gpu->used; memory->free = gpu->total - gpu->used)
}
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *degrees) {
    READ(sensor == 0, *degrees = gpu->temperature)
}
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) { READ(NEW, *milliwatts = gpu->power) }
int nvmlDeviceGetTotalEccErrors(void *handle, int type, int counter, unsigned long long *errors) {
    READ(NEW, *errors = type == 1 && counter == 0 ? gpu->ecc : 4242)
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failed) {
    READ(NEW, *correctable = 7; *uncorrectable = 7; *pending = gpu->pending; *failed = gpu->failed)
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    READ(NEW, *reasons = gpu->reasons)
}
int nvmlDeviceGetFieldValues(void *handle, int many, Field *fields) {
    READ(NEW, for (int n = 0; n < many; n++) {
        fields[n].kind = UNSIGNED_INT;
        fields[n].result = fields[n].field == RECOVERY ? OK : NOT_SUPPORTED;
        fields[n].value.number = gpu->recovery;
    })
}
