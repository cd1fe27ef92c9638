package mountinfo

import (
	"maps"
	"path/filepath"
	"slices"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// Copy is another mount of the same file system, for example a bind mount.
type Copy struct {
	// Point is the mount point, relative to the root directory of the process PID.
	Point string
	// PID is the ID of a process in whose mount namespace the copy is, or 0 for the mount namespace of this process.
	PID int
}

// Copies returns the mounts that would remain if dir were unmounted: bind mounts of the file system at dir, and mounts
// in other mount namespaces. Processes that see such a copy can still use the file system. Copies does not find mounts
// in namespaces without a process, or in namespaces whose processes this process may not inspect. It returns nil if
// nothing is mounted at dir.
func Copies(dir string) ([]Copy, error) {
	own, err := Self()
	if err != nil {
		return nil, err
	}
	it, ok := own.At(dir)
	if !ok {
		return nil, nil
	}
	tables := others()
	tables[0] = own
	parentMount, _ := own.byID(it.Parent)
	reached := reach(parentMount.Shared, tables)
	var copies []Copy
	for _, pid := range slices.Sorted(maps.Keys(tables)) {
		t := tables[pid]
		for _, m := range t {
			if m.Device != it.Device || pid == 0 && m.ID == it.ID {
				continue
			}
			// An unmount propagates to the same directory in every mount of the peer groups that it reaches, so a copy
			// in such a mount does not remain.
			parent, _ := t.byID(m.Parent)
			if (reached[parent.Shared] || reached[parent.Master]) && parent.place(m) == parentMount.place(it) {
				continue
			}
			copies = append(copies, Copy{m.Point, pid})
		}
	}
	return copies, nil
}

// others returns the mount tables of all other mount namespaces. The key of each table is the ID of one process in the
// namespace.
func others() map[int]Table {
	tables := map[int]Table{}
	own, err := proc.Self.Namespace("mnt")
	if err != nil {
		return tables
	}
	seen := map[string]bool{own: true}
	pids, _ := proc.PIDs()
	for _, pid := range pids {
		p := proc.Of(pid)
		namespace, err := p.Namespace("mnt")
		if err != nil || seen[namespace] {
			continue
		}
		t, err := read(p)
		if err != nil || len(t) == 0 {
			continue // the process has ended; another process of the namespace may be found later
		}
		seen[namespace] = true
		tables[pid] = t
	}
	return tables
}

// reach returns the peer groups to which mounts and unmounts in a group propagate: the group itself and, recursively,
// its slaves. It returns an empty set for group 0, which means no group.
func reach(group int, tables map[int]Table) map[int]bool {
	reached := map[int]bool{}
	if group == 0 {
		return reached
	}
	reached[group] = true
	for more := true; more; {
		more = false
		for _, t := range tables {
			for _, m := range t {
				if reached[m.Master] && m.Shared != 0 && !reached[m.Shared] {
					reached[m.Shared], more = true, true
				}
			}
		}
	}
	return reached
}

// place returns the directory at which the mount on is mounted, as a path in the file system of m, which contains that
// directory.
func (m Mount) place(on Mount) string {
	rest, err := filepath.Rel(m.Point, on.Point)
	if err != nil {
		return on.Point
	}
	return filepath.Join(m.Root, rest)
}
