/* Gives QEMU's own devices the PCI identity of a GPU.
 *
 * No option of QEMU changes the ids of an emulated device. But distributions build QEMU with modules, so its internal
 * functions are visible to a library that is preloaded, and this one uses them to register new device types: "edu,
 * but it says 10de:1db4, class 0302". Nothing of QEMU is patched or rebuilt.
 *
 *   VHOST_MODELS="name=v100,parent=edu,ids=10de:1db4,class=030200,rev=a1,sub=10de:1214,bar=1:16384:p;..."
 *   LD_PRELOAD=shim.so qemu-system-x86_64 -device v100,bus=...
 *
 * bar=NUMBER:MIB[:p] adds a memory region: empty, 32 bits wide, or with `p` 64 bits wide and prefetchable. Where the
 * parent has a BAR 0 already, inner=NAME is its region, which then lies at the start of the new, larger BAR 0.
 *
 * dies=1 is a device that does not survive a reset of its bus, once somebody has written ARMED to its cache line size:
 * from then on its configuration space reads 0xff. (A reset is known by that register being 0 again.)
 *
 * What could go wrong: the layout of some structs of QEMU is assumed. TypeInfo has not changed from QEMU 2 to 10.
 * PCIDeviceClass has the four pointers realize, exit, config_read and config_write right before its id block, and
 * PCIIORegion is address, size, type, region; where these are is looked for, not assumed. Every doubt ends the program
 * with a message, not with a wrong device. Tried with QEMU 7.2 and 10.0.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* include/qom/object.h */
typedef struct {
    const char *name, *parent;
    size_t instance_size, instance_align;
    void (*instance_init)(void *);
    void (*instance_post_init)(void *);
    void (*instance_finalize)(void *);
    bool abstract;
    size_t class_size;
    void (*class_init)(void *class, void *data);
    void (*class_base_init)(void *class, void *data);
    void *class_data;
    void *interfaces;
} TypeInfo;

typedef void Realize(void *device, void **error);
typedef uint32_t ReadConfig(void *device, uint32_t at, int size);

enum { MAX_MODELS = 32, MAX_BARS = 6, MEMORY_REGION_SIZE = 4096, CONFIG_HEADER = 64 };
enum { DEVICE_SIZE = 4096 }; /* how much of a device is searched: edu and nvme are larger */
enum { BAR_64BIT_PREFETCHABLE = 0x04 | 0x08 }; /* PCI_BASE_ADDRESS_MEM_TYPE_64 | _PREFETCH */

struct bar {
    unsigned number, mib;
    bool wide;
};

struct model {
    char name[64], parent[64], inner[64];
    unsigned vendor, product, class_code, revision, sub_vendor, sub_product, bars, dies;
    struct bar bar[MAX_BARS];
    Realize *parent_realize;
    bool armed, dead;
};

static struct model models[MAX_MODELS];
static unsigned model_count;

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "shim: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    exit(1);
}

static void *qemu(const char *name) {
    void *function = dlsym(RTLD_DEFAULT, name);
    if (!function)
        die("this QEMU does not export %s: it was built without modules", name);
    return function;
}

/* --- after a device was made: its configuration space --- */

/* Copies from an address that may not be one: the kernel answers EFAULT where a plain read would end the program. */
static bool copy_safely(void *to, const void *from, size_t size) {
    int ends[2];
    if (pipe(ends))
        die("no pipe");
    bool readable = write(ends[1], from, size) == (ssize_t)size && read(ends[0], to, size) == (ssize_t)size;
    close(ends[0]);
    close(ends[1]);
    return readable;
}

/* PCIDevice has a pointer to its configuration space near its start, at an offset that differs between versions:
 * it is the pointer to the very bytes that QEMU's own read function returns. */
static uint8_t *config_space(void *device, const char *name) {
    uint32_t (*read_config)(void *, uint32_t, int) = qemu("pci_default_read_config");
    uint8_t wanted[CONFIG_HEADER], seen[CONFIG_HEADER];
    for (unsigned i = 0; i < CONFIG_HEADER; i++)
        wanted[i] = read_config(device, i, 1);
    for (unsigned i = 0; i < 64; i++) {
        uint8_t *candidate = ((uint8_t **)device)[i];
        if (copy_safely(seen, candidate, CONFIG_HEADER) && !memcmp(seen, wanted, CONFIG_HEADER))
            return candidate;
    }
    die("configuration space of %s not found", name);
}

static void put16(uint8_t *at, unsigned value) {
    at[0] = value;
    at[1] = value >> 8;
}

static void set_identity(uint8_t *config, const struct model *model) {
    put16(config + 0x00, model->vendor);
    put16(config + 0x02, model->product);
    config[0x08] = model->revision;
    config[0x09] = model->class_code; /* programming interface */
    put16(config + 0x0a, model->class_code >> 8);
    if ((config[0x0e] & 0x7f) == 0) { /* in the header of a bridge something else is here */
        put16(config + 0x2c, model->sub_vendor);
        put16(config + 0x2e, model->sub_product);
    }
}

/* QEMU (10) refuses to register a BAR twice, so the parent's is forgotten first: its PCIIORegion, found by the region
 * that it points to, gets the size 0. Nothing is mapped yet while a device is being made. */
static void *take_bar0(void *device, const struct model *model) {
    void *(*child)(void *, const char *) = qemu("object_resolve_path_component");
    void *inner = child(device, model->inner);
    if (!inner)
        die("%s: %s has no region %s", model->name, model->parent, model->inner);
    uint64_t *words = device;
    for (unsigned at = 3; at < DEVICE_SIZE / sizeof *words; at++)
        if (words[at] == (uintptr_t)inner && words[at - 3] == UINT64_MAX /* no address yet */) {
            words[at - 2] = 0;
            return inner;
        }
    die("%s: BAR 0 of %s not found", model->name, model->parent);
}

static void add_bars(void *device, const struct model *model) {
    void (*init)(void *, void *, const char *, uint64_t) = qemu("memory_region_init");
    void (*add_inside)(void *, uint64_t, void *) = qemu("memory_region_add_subregion");
    void (*register_bar)(void *, int, uint8_t, void *) = qemu("pci_register_bar");
    for (unsigned i = 0; i < model->bars; i++) {
        const struct bar *bar = &model->bar[i];
        void *region = calloc(1, MEMORY_REGION_SIZE); /* lives as long as the machine; the real size is below 300 */
        char name[16];
        snprintf(name, sizeof name, "gpu-bar%u", bar->number);
        init(region, device, name, (uint64_t)bar->mib << 20);
        if (bar->number == 0)
            add_inside(region, 0, take_bar0(device, model));
        register_bar(device, bar->number, bar->wide ? BAR_64BIT_PREFETCHABLE : 0, region);
    }
}

/* --- when a type is first used: its class --- */

static const struct model *model_of(void *device) {
    const char *(*type_name)(void *) = qemu("object_get_typename");
    const char *name = type_name(device);
    for (unsigned i = 0; i < model_count; i++)
        if (!strcmp(models[i].name, name))
            return &models[i];
    die("%s is no model", name);
}

/* Some devices write their ids when they are made (nvme), or their revision (bochs-display), so ours come after. */
static void realize(void *device, void **error) {
    const struct model *model = model_of(device);
    model->parent_realize(device, error);
    if (error && *error)
        return;
    set_identity(config_space(device, model->name), model);
    add_bars(device, model);
}

enum { CACHE_LINE_SIZE = 0x0c, ARMED = 0xee };

static uint32_t read_of_dying(void *device, uint32_t at, int size) {
    ReadConfig *read_config = (ReadConfig *)qemu("pci_default_read_config");
    struct model *model = (struct model *)model_of(device);
    uint32_t line = read_config(device, CACHE_LINE_SIZE, 1);
    model->dead = model->dead || (model->armed && line == 0);
    model->armed = model->armed || line == ARMED;
    return model->dead ? UINT32_MAX >> (32 - 8 * size) : read_config(device, at, size);
}

/* Where the id block is in every PCIDeviceClass, learned from a device whose ids are known. */
static size_t id_block(void) {
    void *(*class_by_name)(const char *) = qemu("object_class_by_name");
    uint8_t *class = class_by_name("edu");
    if (!class)
        die("this QEMU has no edu device");
    for (size_t at = 0; at < 1024; at += 2)
        if (*(uint16_t *)(class + at) == 0x1234 && *(uint16_t *)(class + at + 2) == 0x11e8)
            return at;
    die("PCIDeviceClass is not as expected in this QEMU");
}

static void class_init(void *class, void *data) {
    struct model *model = data;
    Realize **slot = (Realize **)((uint8_t *)class + id_block()) - 4;
    model->parent_realize = *slot;
    *slot = realize;
    if (model->dies)
        slot[2] = (Realize *)read_of_dying; /* config_read, which realize and exit stand before */
}

/* --- when the library is loaded: VHOST_MODELS --- */

static void parse_field(struct model *model, char *field) {
    char *value = strchr(field, '=');
    if (!value)
        die("%s: write key=value", field);
    *value++ = 0;
    bool fine = true;
    if (!strcmp(field, "name"))
        fine = sscanf(value, "%63s", model->name) == 1;
    else if (!strcmp(field, "parent"))
        fine = sscanf(value, "%63s", model->parent) == 1;
    else if (!strcmp(field, "inner"))
        fine = sscanf(value, "%63s", model->inner) == 1;
    else if (!strcmp(field, "ids"))
        fine = sscanf(value, "%x:%x", &model->vendor, &model->product) == 2;
    else if (!strcmp(field, "sub"))
        fine = sscanf(value, "%x:%x", &model->sub_vendor, &model->sub_product) == 2;
    else if (!strcmp(field, "class"))
        fine = sscanf(value, "%x", &model->class_code) == 1;
    else if (!strcmp(field, "dies"))
        fine = sscanf(value, "%u", &model->dies) == 1;
    else if (!strcmp(field, "rev"))
        fine = sscanf(value, "%x", &model->revision) == 1;
    else if (!strcmp(field, "bar") && model->bars < MAX_BARS) {
        struct bar *bar = &model->bar[model->bars++];
        fine = sscanf(value, "%u:%u", &bar->number, &bar->mib) == 2 && bar->number < 6;
        bar->wide = strstr(value, ":p") != NULL;
    } else
        fine = false;
    if (!fine)
        die("VHOST_MODELS: %s=%s is not understood", field, value);
}

__attribute__((constructor)) static void start(void) {
    void (*register_type)(const TypeInfo *) = dlsym(RTLD_DEFAULT, "type_register_static");
    char *text = getenv("VHOST_MODELS"), *rest = NULL, *rest_of_one = NULL;
    if (!text || !register_type) /* also preloaded into what QEMU starts: nothing to do there */
        return;
    text = strdup(text);
    for (char *one = strtok_r(text, ";", &rest); one; one = strtok_r(NULL, ";", &rest)) {
        if (model_count == MAX_MODELS)
            die("more than %d models", MAX_MODELS);
        struct model *model = &models[model_count++];
        for (char *field = strtok_r(one, ",", &rest_of_one); field; field = strtok_r(NULL, ",", &rest_of_one))
            parse_field(model, field);
        TypeInfo *type = calloc(1, sizeof *type);
        type->name = model->name;
        type->parent = model->parent;
        type->class_init = class_init;
        type->class_data = model;
        register_type(type);
    }
}
