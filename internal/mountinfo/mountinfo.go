// Package mountinfo reads the kernel's mount tables, whose format is described in proc_pid_mountinfo(5). Reading a
// table opens no file of the listed mounts. This matters for a daemon that serves a mount, because it would wait for
// itself if it opened a file of that mount.
package mountinfo

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// Mount is one line of a mount table.
type Mount struct {
	// ID identifies this mount, and Parent the mount that contains its mount point.
	ID, Parent int
	Device     uint64 // device number of the file system, as in st_dev
	Root       string // directory of the file system that is visible at the mount point, "/" for the whole file system
	Point      string // mount point, relative to the root directory of the process that the table belongs to
	// Options are the options of this mount.
	Options []string
	// Shared is the number of the peer group with which this mount shares mounts and unmounts, or 0 if there is none.
	Shared int
	// Master is the number of the peer group from which this mount receives mounts and unmounts, or 0 if there is none.
	Master int
	// Type is the file system type, and Source its source, such as a device.
	Type   string
	Source string
	Super  []string // options of the file system; Options holds those of this mount
}

// Table lists the mounts of a mount namespace. If two mounts have the same mount point, the later one hides the earlier
// one.
type Table []Mount

// Self returns the table of this process's mount namespace.
func Self() (Table, error) { return read(proc.Self) }

// read reads the mount table of a process's mount namespace.
func read(p proc.Process) (Table, error) {
	text, err := os.ReadFile(p.MountTable())
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	return Parse(text), nil
}

// Parse parses a mount table. It skips lines that do not have the expected format.
func Parse(text []byte) (t Table) {
	for line := range strings.Lines(string(text)) {
		if m, ok := parseLine(line); ok {
			t = append(t, m)
		}
	}
	return t
}

// parseLine parses one line of a mount table. ok is false if the line does not have the expected format.
func parseLine(line string) (m Mount, ok bool) {
	front, back, found := strings.Cut(line, " - ")
	f, b := strings.Fields(front), strings.Fields(back)
	if !found || len(f) < 6 || len(b) < 1 {
		return m, false
	}
	major, minor, _ := strings.Cut(f[2], ":")
	maj, err1 := strconv.ParseUint(major, 10, 32)
	low, err2 := strconv.ParseUint(minor, 10, 32)
	if m.ID, ok = number(f[0]); !ok || err1 != nil || err2 != nil {
		return m, false
	}
	m.Parent, _ = number(f[1])
	m.Device = unix.Mkdev(uint32(maj), uint32(low))
	m.Root, m.Point, m.Options = unquote.Replace(f[3]), unquote.Replace(f[4]), strings.Split(f[5], ",")
	for _, tag := range f[6:] {
		name, value, _ := strings.Cut(tag, ":")
		switch n, _ := number(value); name {
		case "shared":
			m.Shared = n
		case "master":
			m.Master = n
		}
	}
	b = append(b, "", "") // append empty strings, because the source may be empty, and empty fields are lost
	m.Type, m.Source, m.Super = b[0], unquote.Replace(b[1]), strings.Split(b[2], ",")
	return m, true
}

// number parses a decimal number. It returns false if s is not a decimal number.
func number(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil
}

// unquote decodes the octal escapes in the paths of a mount table. The kernel writes them in mangle_path
// (fs/seq_file.c).
var unquote = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// At returns the mount whose mount point is dir. If several mounts have this mount point, it returns the uppermost one,
// which hides the others. It returns false if there is none.
func (t Table) At(dir string) (Mount, bool) {
	for _, m := range slices.Backward(t) {
		if m.Point == dir {
			return m, true
		}
	}
	return Mount{}, false
}

// Above returns the mount that contains path, which is the mount with the longest mount point above path or at path. It
// returns false if the table has none.
func (t Table) Above(path string) (found Mount, ok bool) {
	for _, m := range t {
		if len(m.Point) >= len(found.Point) && Within(m.Point, path) {
			found, ok = m, true
		}
	}
	return found, ok
}

// Within reports whether path is dir or lies below dir. Both must be absolute and clean.
func Within(dir, path string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/' || dir == "/")
}

// byID returns the mount with this ID. It returns false if the table does not contain the mount.
func (t Table) byID(id int) (Mount, bool) {
	i := slices.IndexFunc(t, func(m Mount) bool { return m.ID == id })
	if i < 0 {
		return Mount{}, false
	}
	return t[i], true
}
