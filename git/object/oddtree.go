package object

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// Oddity is the reason why an entry of a tree is odd.
type Oddity string

// The values of Oddity. git fsck reports all of them. git itself refuses to check out entries with the oddities OddGit,
// OddEmpty and OddSlash.
const (
	OddLong  Oddity = "its name is longer than 255 bytes"
	OddGit   Oddity = "git refuses its name, which some file systems take for .git"
	OddEmpty Oddity = "it has no name"
	OddDots  Oddity = "its name is . or .."
	OddSlash Oddity = "its name contains a slash"
	OddZero  Oddity = "its id has only zeros"
	OddTwice Oddity = "a later entry has the same name"
	OddMerge Oddity = "another directory has the same name" // git joins the files of both directories
	OddOrder Oddity = "it is not in git's order"            // the entry is read and shown like any other
)

// OddEntry is an entry of a tree that git would not write.
type OddEntry struct {
	TreeEntry
	Why Oddity
}

// Hidden reports whether no directory shows the entry.
func (e OddEntry) Hidden() bool { return e.Why != OddOrder }

// Staged reports whether git's index contains the entry although no directory shows it, so that the next commit keeps
// the entry. The index contains no entries with names that git refuses: git would check out such a file, for example a
// hook, without checking its name again. git treats these entries as removed.
func (e OddEntry) Staged() bool { return e.Why == OddLong || e.Why == OddMerge }

// ReadTree parses a tree that may contain odd entries, which ParseTree refuses. Like git, it uses the last of several
// entries with the same name, and treats an entry with a mode of an unknown type as a gitlink. The result entries is in
// git's order and has no duplicate names. It contains the entries for which CanShow returns false, but none of the
// other odd entries, because no tree that is made from the entries should contain those. ReadTree returns an error only
// if the rest of the tree cannot be parsed.
func ReadTree(f Format, content []byte) (entries []TreeEntry, odd []OddEntry, err error) {
	// Nearly all trees are in order, so they are parsed as they are.
	if entries, err = ParseTree(f, content); err == nil || len(content) > MaxTreeSize {
		return entries, nil, err
	}
	entries, n, unsorted := entries[:0], f.Size(), false
	for rest := content; len(rest) > 0; {
		mode, nameAt, ok := gitMode(rest)
		end := -1
		if ok {
			end = bytes.IndexByte(rest[nameAt:], 0)
		}
		if end < 0 || len(rest) < nameAt+end+1+n {
			return nil, nil, fmt.Errorf("parse tree entry %d: invalid mode or truncated entry", len(entries)+len(odd))
		}
		name := string(rest[nameAt : nameAt+end])
		rest = rest[nameAt+end+1:]
		id, _ := FromBytes(rest[:n])
		e := TreeEntry{name, mode, id}
		zero := isZero(rest[:n])
		rest = rest[n:]
		why := oddName(name)
		switch {
		case zero:
			odd = append(odd, OddEntry{e, OddZero})
			continue
		case why == OddEmpty || why == OddDots || why == OddSlash:
			odd = append(odd, OddEntry{e, why})
			continue
		case why != "":
			odd = append(odd, OddEntry{e, why})
		}
		if last := len(entries) - 1; last >= 0 && CompareEntries(entries[last], e) >= 0 {
			if entries[last].Name != name {
				odd = append(odd, OddEntry{e, OddOrder})
			}
			unsorted = true
		}
		entries = append(entries, e)
	}
	// The last entry of a name counts. Entries with one name may be anywhere, if one is a file and the other a directory.
	lastOf := make(map[string]int, len(entries))
	for i, e := range entries {
		lastOf[e.Name] = i
	}
	if len(lastOf) < len(entries) {
		kept := make([]TreeEntry, 0, len(lastOf))
		for i, e := range entries {
			last := entries[lastOf[e.Name]]
			switch {
			case lastOf[e.Name] == i:
				kept = append(kept, e)
			case e.Mode == ModeDir && last.Mode == ModeDir && e.ID != last.ID:
				odd = append(odd, OddEntry{e, OddMerge})
			default:
				odd = append(odd, OddEntry{e, OddTwice})
			}
		}
		entries = kept
	}
	if unsorted {
		slices.SortFunc(entries, CompareEntries)
	}
	return entries, odd, nil
}

// gitMode parses the mode at the start of an entry as git does. The result nameAt is the offset of the name. ok is
// false if the entry has no mode.
func gitMode(b []byte) (mode Mode, nameAt int, ok bool) {
	i := 0
	for ; i < len(b) && b[i] != ' '; i++ {
		if b[i] < '0' || b[i] > '7' {
			return 0, 0, false
		}
		mode = mode<<3 | Mode(b[i]-'0')
	}
	const typeMask, regular, userExec = 0o170000, 0o100000, 0o100
	switch mode & typeMask {
	case regular:
		if mode&userExec != 0 {
			mode = ModeExec
		} else {
			mode = ModeFile
		}
	case ModeDir, ModeSymlink:
		mode &= typeMask
	default:
		mode = ModeGitlink
	}
	return mode, i + 1, i > 0 && i < len(b)
}

// oddName returns the reason why a name is odd, or "".
func oddName(name string) Oddity {
	switch {
	case name == "":
		return OddEmpty
	case name == "." || name == "..":
		return OddDots
	case strings.IndexByte(name, '/') >= 0:
		return OddSlash
	case isNTFSDotGit(name):
		return OddGit
	case len(name) > MaxNameLen:
		return OddLong
	}
	return ""
}

// CanShow reports whether a directory can have an entry with this name that git would write. Like git on Linux
// (core.protectNTFS), it refuses names that NTFS treats as ".git". It accepts names that only HFS+ treats in this way.
func CanShow(name string) bool { return oddName(name) == "" }

// CanStagePath reports whether git's index can have an entry with this path: git refuses none of its names.
func CanStagePath(path string) bool {
	for name := range strings.SplitSeq(path, "/") {
		if why := oddName(name); why != "" && why != OddLong {
			return false
		}
	}
	return true
}

// CanShowPath reports whether CanShow accepts every name in a path.
func CanShowPath(path string) bool {
	for name := range strings.SplitSeq(path, "/") {
		if !CanShow(name) {
			return false
		}
	}
	return true
}
