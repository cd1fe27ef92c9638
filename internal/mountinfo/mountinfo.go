// Package mountinfo reads the kernel's tables of mounts. They describe a mount without access to it: a daemon that opened a file of a
// mount that it serves would wait for itself. Format: proc_pid_mountinfo(5).
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

// Mount is one line of a table.
type Mount struct {
	ID, Parent int
	Device     uint64 // st_dev of the files in the mount
	Root       string // directory of the file system that is mounted
	Point      string // mount point, relative to the root directory of the process whose table it is
	Options    []string
	Shared     int // the peer group that mounts and unmounts below it are shared with; 0: none
	Master     int // the peer group that they are taken over from; 0: none
	Type       string
	Source     string
	Super      []string // options of the file system
}

// Table lists the mounts of a mount namespace. Of two mounts at one directory the later one hides the earlier.
type Table []Mount

// Self returns the table of this process's mount namespace.
func Self() (Table, error) { return read(proc.Self) }

func read(p proc.Process) (Table, error) {
	text, err := os.ReadFile(p.MountTable())
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	return Parse(text), nil
}

// Parse parses a table. It skips lines that are not of the format.
func Parse(text []byte) (t Table) {
	for line := range strings.Lines(string(text)) {
		if m, ok := parseLine(line); ok {
			t = append(t, m)
		}
	}
	return t
}

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
	b = append(b, "", "") // a source may be empty
	m.Type, m.Source, m.Super = b[0], unquote.Replace(b[1]), strings.Split(b[2], ",")
	return m, true
}

func number(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil
}

// unquote decodes the octal escapes that the kernel writes into paths of tables (fs/seq_file.c, mangle_path).
var unquote = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// At returns the mount whose mount point is dir, the uppermost if there are several.
func (t Table) At(dir string) (Mount, bool) {
	for _, m := range slices.Backward(t) {
		if m.Point == dir {
			return m, true
		}
	}
	return Mount{}, false
}

// Above returns the mount that contains path.
func (t Table) Above(path string) (found Mount, ok bool) {
	for _, m := range t {
		if len(m.Point) >= len(found.Point) && Within(m.Point, path) {
			found, ok = m, true
		}
	}
	return found, ok
}

// Within reports whether path is dir or lies below it. Both are absolute and clean.
func Within(dir, path string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/' || dir == "/")
}

func (t Table) byID(id int) (Mount, bool) {
	i := slices.IndexFunc(t, func(m Mount) bool { return m.ID == id })
	if i < 0 {
		return Mount{}, false
	}
	return t[i], true
}
