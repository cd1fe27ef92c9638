package mountinfo

import (
	"maps"
	"path/filepath"
	"slices"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// Copy is another mount of a file system.
type Copy struct {
	Point string // below the root directory of the process
	PID   int    // of a process in whose mount namespace it is; 0: in that of this process
}

// Copies returns the mounts of the file system mounted at dir that remain when it is unmounted there: bind mounts, and mounts in other
// mount namespaces, whose processes continue to use it; the file system ends with the last of them. Namespaces that have no process,
// or only processes that this one may not inspect, are missing. It returns nil if nothing is mounted at dir.
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
			// An unmount is one of the same place in every mount that it reaches.
			parent, _ := t.byID(m.Parent)
			if (reached[parent.Shared] || reached[parent.Master]) && parent.place(m) == parentMount.place(it) {
				continue
			}
			copies = append(copies, Copy{m.Point, pid})
		}
	}
	return copies, nil
}

// others returns the tables of all other mount namespaces by the number of one process of each.
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
			continue // it has ended, and another process of the namespace may tell
		}
		seen[namespace] = true
		tables[pid] = t
	}
	return tables
}

// reach returns the peer groups to which mounts and unmounts in group propagate: itself, its slaves and theirs.
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

// place returns the directory of m's file system that the mount on covers.
func (m Mount) place(on Mount) string {
	rest, err := filepath.Rel(m.Point, on.Point)
	if err != nil {
		return on.Point
	}
	return filepath.Join(m.Root, rest)
}
