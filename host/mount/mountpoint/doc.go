// Package mountpoint prepares the directories of mounts. It also finds reasons that prevent mounting and unmounting:
// other file systems, dead mounts, and processes that use a mount. It reads the mount table and /proc, but never
// accesses files of a mount, because this process itself might have to answer the kernel's request for such an access.
package mountpoint
