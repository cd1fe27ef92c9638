// Package mountpoint prepares the directories that are mounted on, and finds what stands in the way of mounting and unmounting:
// other file systems, dead mounts, and the processes that use a mount. It looks at the table of mounts and at /proc, never through
// a mount: a mount of this process would have to be answered by this process.
package mountpoint
