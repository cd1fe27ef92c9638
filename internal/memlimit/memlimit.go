// Package memlimit finds out how much memory this process and its children can use: the memory of the machine, or less
// if the process is in a control group with a limit, for example in a container.
package memlimit

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// files lists the files that contain memory limits of a control group, for versions 1 and 2 (kernel documentation,
// cgroup-v1/memory.rst and cgroup-v2.rst). Above memory.high, the kernel slows processes down so much that they hardly
// run.
var files = map[string][]string{"cgroup": {"memory.limit_in_bytes"}, "cgroup2": {"memory.max", "memory.high"}}

// Bytes returns the amount of memory, in bytes, that this process and its children can use.
func Bytes() int64 {
	limit := int64(math.MaxInt64)
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		limit = int64(min(uint64(info.Totalram)*uint64(info.Unit), math.MaxInt64))
	}
	groups, err := proc.Self.Cgroups()
	if err != nil {
		return limit
	}
	table, err := mountinfo.Self()
	if err != nil {
		return limit
	}
	return min(limit, ofGroups(groups, table))
}

// ofGroups returns the smallest memory limit, in bytes, of the given control groups and of all groups that contain them
// and are visible in the mount table.
func ofGroups(groups []proc.Cgroup, table mountinfo.Table) int64 {
	limit := int64(math.MaxInt64)
	for _, m := range table {
		for _, g := range groups {
			memory := slices.Contains(strings.Split(g.Controllers, ","), "memory")
			if m.Type == "cgroup2" != (g.Controllers == "") ||
				m.Type == "cgroup" && !(memory && slices.Contains(m.Super, "memory")) {
				continue
			}
			path := g.Path
			if mountinfo.Within(m.Root, path) { // the mount point may show only the group of the container itself
				path = strings.TrimPrefix(path, strings.TrimSuffix(m.Root, "/"))
			}
			for dir := filepath.Join(m.Point, path); mountinfo.Within(m.Point, dir); dir = filepath.Dir(dir) {
				for _, name := range files[m.Type] {
					limit = min(limit, read(filepath.Join(dir, name)))
				}
				if dir == "/" {
					break
				}
			}
		}
	}
	return limit
}

// read returns the limit in a file, in bytes. It returns math.MaxInt64 if the file contains no positive number, for
// example "max", or cannot be read.
func read(path string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return math.MaxInt64
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n <= 0 {
		return math.MaxInt64
	}
	return n
}
