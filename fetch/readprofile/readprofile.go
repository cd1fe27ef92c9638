// Package readprofile stores which files programs read after a mount, so that the next mount of the same remote can
// fetch these files before they are read.
//
// Terms. A recording is the list of the paths that were read in one mount, in the order of the first reads. A profile
// is the result of several recordings that have the same name, such as "auto" or "build". It contains paths and no
// object ids, so it can be used at any commit: paths that the tree does not have are skipped. The recording of a mount
// that reads nearly the whole tree contains no paths, only the flag Whole.
//
// Promises. Parse accepts only profiles within the limits below whose paths can be paths of a tree, so it is safe to
// parse a profile from another machine. Files are replaced as a whole, under a lock, so that mounts which end at the
// same time lose no recording.
package readprofile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/git/varint"
)

const (
	// MaxPaths is the maximum number of paths of a recording and of a profile.
	MaxPaths = 100_000
	// MaxSize is the maximum size of an encoded profile, in bytes.
	MaxSize = 16 << 20
	// maxPath is the maximum length of a path in bytes. Longer paths are not recorded.
	maxPath = 4096
	// Recordings is the number of consecutive recordings without a path after which the profile drops the path.
	Recordings = 8
)

// Auto is the name of the profile that a mount records and uses by default. None is not the name of a profile: it
// states that a mount neither records nor uses a profile.
const (
	Auto = "auto"
	None = "none"
)

var (
	// ErrName means that a text cannot be the name of a profile.
	ErrName = errors.New("name must consist of at most 64 letters, digits, '-', '_' and '.', and begin with a letter or digit")
	// ErrFormat means that bytes are not a valid profile.
	ErrFormat = errors.New("invalid read profile")
)

// ValidName returns an error that wraps ErrName unless name can be the name of a profile.
func ValidName(name string) error {
	if len(name) > 64 || name == None || !refname.PlainComponent(name) {
		return fmt.Errorf("read profile %.100q: %w", name, ErrName)
	}
	return nil
}

// Path is a file that a read profile contains.
type Path struct {
	Name string // path relative to the root of the tree
	// number of consecutive recordings, up to the newest one, that do not contain the path; less than Recordings
	Missed uint8
}

// Profile is the result of recordings. The zero value is a profile without recordings.
type Profile struct {
	Paths []Path // in the order in which the files will probably be read
	// Whole states that the whole tree is read, after Paths.
	Whole bool
	// WholeMissed is the number of consecutive recordings, up to the newest one, that have not read the whole tree.
	WholeMissed uint8
	Recordings  uint64    // number of recordings
	Recorded    time.Time // end of the newest recording, in whole seconds
}

// IsZero reports whether the profile names no files.
func (p Profile) IsZero() bool { return len(p.Paths) == 0 && !p.Whole }

// Recording is the list of files that were read in one mount.
type Recording struct {
	Paths []string // in the order of the first reads; empty if Whole is true
	Whole bool     // nearly the whole tree was read
	Ended time.Time
}

// NewRecording returns the recording of a mount that has read these paths of a tree with the given number of files. The
// recording is Whole if at least three quarters of the files were read, or if MaxPaths were read and they are at least
// half of the files: a profile of a program that searches the whole tree would otherwise be as large as the tree, and
// of no more use. A tree with fewer than 64 files is never Whole, because its recording is small.
func NewRecording(paths []string, files int, ended time.Time) Recording {
	n := len(paths)
	if files >= 64 && (4*n >= 3*files || n >= MaxPaths && 2*n >= files) {
		return Recording{Whole: true, Ended: ended}
	}
	return Recording{Paths: paths, Ended: ended}
}

// Merge returns the profile after one more recording. The paths of the recording come first, in its order. Paths that
// only p contains follow, in their order, unless they were missing in the last Recordings recordings. If the recording
// is Whole, the profile contains no paths, since all of them are read in the order of the tree.
func (p Profile) Merge(r Recording) Profile {
	merged := Profile{Recordings: p.Recordings + 1, Recorded: r.Ended.Truncate(time.Second)}
	if r.Whole {
		merged.Whole = true
		return merged
	}
	if p.Whole && p.WholeMissed+1 < Recordings {
		merged.Whole, merged.WholeMissed = true, p.WholeMissed+1
	}
	seen := make(map[string]struct{}, len(r.Paths)+len(p.Paths))
	add := func(path Path) {
		if _, twice := seen[path.Name]; !twice && path.Missed < Recordings && len(merged.Paths) < MaxPaths &&
			validPath(path.Name) {
			seen[path.Name] = struct{}{}
			merged.Paths = append(merged.Paths, path)
		}
	}
	for _, name := range r.Paths {
		add(Path{Name: name})
	}
	for _, path := range p.Paths {
		add(Path{path.Name, path.Missed + 1})
	}
	return merged
}

// The format of a profile:
//
//	"AFSREADS"       8 bytes
//	1                version, 1 byte
//	flags            1 byte; bit 0: Whole
//	WholeMissed      1 byte
//	Recordings       varint
//	Recorded         varint, seconds since 1970
//	number of paths  varint
//	paths            for each: length of the prefix shared with the previous path (varint), length of the rest (varint), the rest,
//	                 Missed (1 byte)
//	checksum         4 bytes, big endian: CRC-32C of everything before it
//
// varint is the format of package varint.
const (
	magic     = "AFSREADS"
	version   = 1
	flagWhole = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns the profile in the format of a file. If the profile would be larger than MaxSize, its last paths are
// left out.
func (p Profile) Encode() []byte {
	body, count, before := []byte(nil), 0, ""
	for _, path := range p.Paths[:min(len(p.Paths), MaxPaths)] {
		shared := sharedPrefix(before, path.Name)
		next := varint.Append(body, uint64(shared))
		next = varint.Append(next, uint64(len(path.Name)-shared))
		next = append(append(next, path.Name[shared:]...), path.Missed)
		if len(next) > MaxSize-64 { // the parts of the file before and after the paths take less than 64 bytes
			break
		}
		body, before = next, path.Name
		count++
	}
	b := append([]byte(magic), version, 0, p.WholeMissed)
	if p.Whole {
		b[len(magic)+1] = flagWhole
	}
	b = varint.Append(b, p.Recordings)
	b = varint.Append(b, uint64(max(p.Recorded.Unix(), 0)))
	b = varint.Append(b, uint64(count))
	b = append(b, body...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// sharedPrefix returns the length of the longest common prefix of two paths.
func sharedPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// Parse parses an encoded profile. It returns an error that wraps ErrFormat if the profile is damaged, exceeds a limit,
// contains a path twice, or contains a path that no tree can have. The bytes may come from another machine.
func Parse(b []byte) (Profile, error) {
	invalid := func(reason string) (Profile, error) { return Profile{}, fmt.Errorf("%w: %s", ErrFormat, reason) }
	const head = len(magic) + 3
	if len(b) > MaxSize {
		return invalid("too large")
	}
	if len(b) < head+4 || string(b[:len(magic)]) != magic {
		return invalid("not a read profile")
	}
	if b[len(magic)] != version {
		return invalid(fmt.Sprintf("version %d is not supported", b[len(magic)]))
	}
	rest, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(rest, castagnoli) != sum {
		return invalid("wrong checksum")
	}
	flags := b[len(magic)+1]
	p := Profile{Whole: flags == flagWhole, WholeMissed: b[len(magic)+2]}
	if flags > flagWhole || p.WholeMissed >= Recordings || !p.Whole && p.WholeMissed > 0 {
		return invalid("invalid flags")
	}
	d := decoder{b: rest[head:]}
	p.Recordings = d.number()
	seconds, count := d.number(), d.number()
	if d.failed || count > MaxPaths || seconds >= 1<<40 {
		return invalid("invalid header")
	}
	if seconds > 0 {
		p.Recorded = time.Unix(int64(seconds), 0)
	}
	seen, before := make(map[string]struct{}, min(count, uint64(len(rest)/3))), ""
	for range count {
		path := d.path(before)
		if d.failed || path.Missed >= Recordings || !validPath(path.Name) {
			return invalid("invalid path")
		}
		if _, twice := seen[path.Name]; twice {
			return invalid("path is contained twice")
		}
		seen[path.Name] = struct{}{}
		p.Paths, before = append(p.Paths, path), path.Name
	}
	if len(d.b) > 0 {
		return invalid("bytes follow the last path")
	}
	return p, nil
}

// decoder reads the fields of a profile from b. After an error, failed is true and the results are zero.
type decoder struct {
	b      []byte
	failed bool
}

func (d *decoder) number() uint64 {
	v, n := varint.Decode(d.b)
	if n == 0 {
		d.b, d.failed = nil, true
		return 0
	}
	d.b = d.b[n:]
	return v
}

// path reads a path that shares a prefix with the path before it.
func (d *decoder) path(before string) Path {
	shared, length := d.number(), d.number()
	if d.failed || shared > uint64(len(before)) || length > maxPath || shared+length > maxPath ||
		length >= uint64(len(d.b)) {
		d.failed = true
		return Path{}
	}
	path := Path{before[:shared] + string(d.b[:length]), d.b[length]}
	d.b = d.b[length+1:]
	return path
}

// validPath reports whether a tree can have a file with this path.
func validPath(path string) bool {
	if len(path) > maxPath || strings.IndexByte(path, 0) >= 0 {
		return false
	}
	return !slices.ContainsFunc(strings.Split(path, "/"), func(name string) bool {
		return name == "" || name == "." || name == ".." || strings.EqualFold(name, ".git")
	})
}
