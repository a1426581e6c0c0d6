/*
 * Pods of this node, by address, whose sockets are not translated, because the pod asks for that.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"

MAP("hash", struct address, __u32, socket_optouts, MAX_INTERFACES, BPF_F_NO_PREALLOC);
