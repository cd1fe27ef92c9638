package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// hierarchies returns the mount points of all control group hierarchies, of versions 1 and 2.
func hierarchies() (points []string, err error) {
	table, err := mountinfo.Self()
	for _, m := range table {
		if m.Type == "cgroup" || m.Type == "cgroup2" {
			points = append(points, m.Point)
		}
	}
	return points, err
}

// makeGroups creates a control group in every hierarchy. The kubelet creates the groups of its pods below it.
func makeGroups(name string) error {
	points, err := hierarchies()
	if err != nil {
		return err
	}
	for _, point := range points {
		group := filepath.Join(point, name)
		if err := os.Mkdir(group, 0o755); err != nil {
			return fmt.Errorf("make control group: %w", err)
		}
		// In version 1, a group accepts no process while its lists of processors and memory nodes are empty. The lists
		// of a new group are empty.
		for _, list := range []string{"cpuset.cpus", "cpuset.mems"} {
			text, err := os.ReadFile(filepath.Join(point, list))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(group, list), text, 0)
			}
			if err != nil {
				return fmt.Errorf("make control group: %w", err)
			}
		}
	}
	return nil
}

// removeGroups removes the group and all groups below it from every hierarchy. No process may run in them.
func removeGroups(name string) error {
	points, err := hierarchies()
	for _, point := range points {
		err = errors.Join(err, removeGroup(filepath.Join(point, name)))
	}
	return err
}

// removeGroup removes one group and all groups below it. The kernel may still count a process that has just ended, so
// removeGroup tries for some seconds.
func removeGroup(dir string) (err error) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var all []string
		filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		err = nil
		for _, group := range slices.Backward(all) { // groups below other groups first
			if e := os.Remove(group); e != nil && !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("remove control group: %w", err)
}
