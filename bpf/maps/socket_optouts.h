/* Addresses of pods of this node that asked for this: their sockets are not translated. */
#pragma once

#include "lib/address.h"
#include "lib/map.h"

MAP("hash", struct address, __u32, socket_optouts, MAX_INTERFACES, BPF_F_NO_PREALLOC);
