package object

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Mode is the mode of a tree entry. git has only these five modes.
type Mode uint32

const (
	ModeDir     Mode = 0o040000
	ModeFile    Mode = 0o100644
	ModeExec    Mode = 0o100755
	ModeSymlink Mode = 0o120000
	ModeGitlink Mode = 0o160000
)

// IsBlob reports whether an entry with this mode refers to a blob: it is a file or a symbolic link.
func (m Mode) IsBlob() bool { return m == ModeFile || m == ModeExec || m == ModeSymlink }

// MaxNameLen is the maximum length of a file name on Linux, in bytes.
const MaxNameLen = 255

// MaxTreeSize is the maximum size of a tree in bytes. The trees of real directories are far smaller (1 MiB has about
// 25,000 entries), and parsing a tree of this size does not exhaust the host's memory.
const MaxTreeSize = 256 << 20

// TreeEntry is one entry of a directory.
type TreeEntry struct {
	Name string
	Mode Mode
	ID   ID
}

// ParseTree parses a tree. It returns an error for entries that could harm a checkout: names that are empty, "." or
// "..", that contain '/', that are longer than MaxNameLen, or that some file system treats as ".git" (IsDotGit);
// unknown modes; zero ids; and entries that are duplicate or out of order.
func ParseTree(f Format, content []byte) ([]TreeEntry, error) {
	if len(content) > MaxTreeSize {
		return nil, fmt.Errorf("parse tree: object has %d bytes, limit is %d", len(content), MaxTreeSize)
	}
	n := f.Size()
	// An entry consists of an id, and of about 16 bytes for the mode and the name.
	entries := make([]TreeEntry, 0, len(content)/(n+16)+1)
	for rest := content; len(rest) > 0; {
		mode, nameAt, err := parseMode(rest)
		if err != nil {
			return nil, fmt.Errorf("parse tree entry %d: %w", len(entries), err)
		}
		end := bytes.IndexByte(rest[nameAt:], 0)
		if end < 0 || len(rest) < nameAt+end+1+n {
			return nil, fmt.Errorf("parse tree entry %d: truncated entry", len(entries))
		}
		name := string(rest[nameAt : nameAt+end])
		if err := checkName(name); err != nil {
			return nil, fmt.Errorf("parse tree entry %d: %w", len(entries), err)
		}
		rest = rest[nameAt+end+1:]
		id, _ := FromBytes(rest[:n])
		if isZero(rest[:n]) {
			return nil, fmt.Errorf("parse tree entry %q: object ID has only zeros", name)
		}
		rest = rest[n:]
		e := TreeEntry{name, mode, id}
		if len(entries) > 0 {
			if c := CompareEntries(entries[len(entries)-1], e); c >= 0 {
				return nil, fmt.Errorf("parse tree entry %q: entry is out of order or duplicate", name)
			}
		}
		if repeats(entries, e) {
			return nil, fmt.Errorf("parse tree entry %q: duplicate name", name)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// parseMode parses the octal mode at the start of an entry. The result nameAt is the offset of the name, which begins
// after the space that follows the mode.
func parseMode(b []byte) (mode Mode, nameAt int, err error) {
	i := 0
	for ; i < len(b) && b[i] != ' '; i++ {
		if b[i] < '0' || b[i] > '7' || i >= 6 {
			return 0, 0, fmt.Errorf("invalid mode %.8q", b)
		}
		mode = mode<<3 | Mode(b[i]-'0')
	}
	if i == 0 || i == len(b) {
		return 0, 0, fmt.Errorf("invalid mode %.8q", b)
	}
	const typeMask, regular, userExec = 0o170000, 0o100000, 0o100
	switch {
	case mode == ModeDir, mode == ModeSymlink, mode == ModeGitlink:
	case mode&typeMask != regular || mode&^(typeMask|0o777) != 0:
		return 0, 0, fmt.Errorf("unknown mode %o", uint32(mode))
	case mode&userExec != 0: // old histories have other permissions; like git, keep only the user's execute permission
		mode = ModeExec
	default:
		mode = ModeFile
	}
	return mode, i + 1, nil
}

// isZero reports whether all bytes are zero.
func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// CompareEntries compares two entries in git's order of tree entries: by the bytes of their names, as if the name of a
// directory ended in '/'. The result is negative if a precedes b, zero if they are equal, and positive otherwise.
func CompareEntries(a, b TreeEntry) int {
	n := min(len(a.Name), len(b.Name))
	// If the names are equal up to the length of the shorter one, the next byte decides.
	if c := strings.Compare(a.Name[:n], b.Name[:n]); c != 0 {
		return c
	}
	ca, cb := byteAt(a, n), byteAt(b, n)
	return int(ca) - int(cb)
}

// byteAt returns the byte i of an entry's name in the form that CompareEntries compares: the byte after the end of the
// name is '/' for a directory and 0 for any other entry.
func byteAt(e TreeEntry, i int) byte {
	if i < len(e.Name) {
		return e.Name[i]
	}
	if e.Mode == ModeDir {
		return '/'
	}
	return 0
}

// repeats reports whether e is a directory and the entries in the parameter before, which precede e, contain a file of
// the same name. In git's order, other entries may be between the two ("a", "a.b", "a/"). The names of all these
// entries start with the name of the directory, so repeats stops at the first entry whose name does not.
func repeats(before []TreeEntry, e TreeEntry) bool {
	if e.Mode != ModeDir {
		return false
	}
	for i := len(before) - 1; i >= 0 && strings.HasPrefix(before[i].Name, e.Name); i-- {
		if before[i].Name == e.Name {
			return true
		}
	}
	return false
}

// checkName returns an error if name must not be an entry of a tree. NUL cannot occur, since it
// ends the name.
func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("empty name")
	case name == "." || name == "..":
		return fmt.Errorf("forbidden name %q", name)
	case len(name) > MaxNameLen:
		return fmt.Errorf("name %.40q... has %d bytes, limit is %d", name, len(name), MaxNameLen)
	case strings.IndexByte(name, '/') >= 0:
		return fmt.Errorf("name %q contains '/'", name)
	case IsDotGit(name):
		return fmt.Errorf("forbidden name %q", name)
	}
	return nil
}

// hfsIgnored reports whether r is a code point that HFS+ ignores when it compares names (Apple TN1150), so that HFS+
// treats ".g\u200cit" as ".git".
func hfsIgnored(r rune) bool {
	return r >= 0x200c && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x206a && r <= 0x206f || r == 0xfeff
}

// IsDotGit reports whether some file system treats name as ".git". It returns true for ".git" in any combination of
// upper and lower case; for ".git" with code points that HFS+ ignores, or with characters that NTFS ignores (trailing
// dots and spaces, and streams such as ".git:x" and ".git::$INDEX_ALLOCATION"); and for NTFS's short name "git~1".
// Callers must refuse these names on every file system, because a tree that contains one of them is an attack.
func IsDotGit(name string) bool {
	if len(name) < 4 {
		return false
	}
	// Most names can be excluded by their first byte. HFS+ ignores no ASCII character, so a name that begins with another
	// ASCII character cannot be treated as ".git".
	if c := name[0]; c != '.' && c != 'g' && c != 'G' && c < utf8.RuneSelf {
		return false
	}
	if isNTFSDotGit(name) {
		return true
	}
	hfs := strings.Map(func(r rune) rune {
		if hfsIgnored(r) {
			return -1
		}
		return r
	}, name)
	return strings.EqualFold(hfs, ".git")
}

// isNTFSDotGit reports whether NTFS treats name as ".git", or name is ".git" in any combination of upper and lower
// case.
func isNTFSDotGit(name string) bool {
	if len(name) < 4 || name[0] != '.' && name[0] != 'g' && name[0] != 'G' {
		return false
	}
	// NTFS reads a colon as the start of a stream's name, and a backslash as a directory separator.
	if i := strings.IndexAny(name, `:\`); i >= 0 {
		name = name[:i]
	}
	name = strings.TrimRight(name, ". ")
	return strings.EqualFold(name, ".git") || strings.EqualFold(name, "git~1")
}
