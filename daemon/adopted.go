package daemon

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control"
)

// An adopted mount was made by somebody who may mount, and is served by this process, which may not: a container's runtime
// opens /dev/fuse, mounts, and leaves the descriptor to the container. Until it is served, whoever touches the directory
// waits, so it is only looked up in the table of mounts.

// adoptable says why a mount made by somebody else cannot be served. Format of the table: proc_pid_mountinfo(5).
func adoptable(table []byte, r control.MountRequest) error {
	var found []string
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 4 && unquote.Replace(fields[4]) == r.Dir {
			found = fields // the last is the one that is seen
		}
	}
	at := slices.Index(found, "-")
	if at < 0 || len(found) < at+4 || found[at+1] != fuseType {
		return fmt.Errorf("%w: nothing of the type %s is mounted there", errNotAdopted, fuseType)
	}
	has := func(options, name string) bool { return slices.Contains(strings.Split(options, ","), name) }
	switch readOnly := has(found[5], "ro"); {
	case !has(found[at+3], "default_permissions"):
		return fmt.Errorf("%w: it is mounted without default_permissions, so nobody would check modes", errNotAdopted)
	case r.ReadOnly && !readOnly:
		return fmt.Errorf("%w: it is not mounted read-only", errNotAdopted)
	case !r.ReadOnly && readOnly:
		return fmt.Errorf("%w: it is mounted read-only, and --read-only was not given", errNotAdopted)
	}
	return nil
}

var errNotAdopted = errors.New("the descriptor cannot be used")

// prepareAdopted is prepareMountpoint for one.
func prepareAdopted(r control.MountRequest) (mountpoint, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return mountpoint{}, fmt.Errorf("read mount table: %w", err)
	}
	return mountpoint{dir: r.Dir}, adoptable(table, r)
}

// foreign says that the mount is one that only somebody else can unmount.
func (m *mount) foreign() bool { return m.request.Device != nil && !mayBind() }

// leaveForeign has the kernel write what it holds. The mount is dead when this process ends, and stays until it is unmounted.
func (m *mount) leaveForeign(force bool) error {
	if !force {
		return &control.Error{Code: control.ExitFailed, Verb: "unmount", Object: m.dir, Cause: "only the program that mounted it may unmount it",
			Hint: fmt.Sprintf("kill %d ends the process that serves it, after its work is settled", os.Getpid())}
	}
	m.flush()
	return nil
}
