package overlay

import (
	"errors"
	"io"
	"os"

	"go.uber.org/zap"
)

// Until package state is there: what its types will look like.
type (
	Node  uint64
	Inode struct {
		Node                        Node
		Mode, Nlink, UID, GID, Rdev uint32
		Size                        int64
		Atime, Mtime, Ctime         int64
		Content                     uint64
		Flags                       uint32
		Parent                      Node
	}
	Presence uint8
)

const (
	Unknown Presence = iota
	Hidden
	Present
)

const SizeOfBase = -1

var (
	ErrBase       = errors.New("contents are the base's")
	ErrSourceBase = errors.New("contents of the source are the base's")
	ErrDamaged    = errors.New("overlay is damaged")
	ErrVersion    = errors.New("overlay is of another version")
	ErrInUse      = errors.New("overlay is in use by another process")
)

type Options struct {
	Log        *zap.Logger
	ReadOnly   bool
	ValidBase  func(Node) bool
	BeforeSync func() error
}

type Recovery struct{ Problems []string }
type Stats struct{ Entries, Hidden, Inodes, Contents, Bytes, LogBytes int64 }
type Report struct{ Findings []Finding }
type Finding struct {
	What     string
	Repaired bool
}

type Layer struct{}

func Open(dir string, o Options) (*Layer, Recovery, error)    { panic("to come") }
func Check(dir string, repair bool) (Report, error)           { panic("to come") }
func (l *Layer) Close() error                                 { panic("to come") }
func (l *Layer) View(f func(r Reader))                        { panic("to come") }
func (l *Layer) Update(f func(tx *Tx) error) error            { panic("to come") }
func (l *Layer) Inode(n Node) (Inode, bool)                   { panic("to come") }
func (l *Layer) Entry(dir Node, name string) (Node, Presence) { panic("to come") }
func (l *Layer) Remember(n Node)                              { panic("to come") }
func (l *Layer) Forget(n Node, k uint64)                      { panic("to come") }
func (l *Layer) Release(n Node)                               { panic("to come") }
func (l *Layer) Sync() error                                  { panic("to come") }
func (l *Layer) Stats() Stats                                 { panic("to come") }
func (l *Layer) Changed() int64                               { panic("to come") }
func (l *Layer) File(n Node) *File                            { panic("to come") }

// Reader reads the state; valid within View or Update only.
type Reader struct{}

func (r Reader) Inode(n Node) (Inode, bool)                   { panic("to come") }
func (r Reader) Entry(dir Node, name string) (Node, Presence) { panic("to come") }

// ReadDir emits the entries of dir behind cookie after (0: from the start) until emit returns false; hidden names too, with Presence.
func (r Reader) ReadDir(dir Node, after uint64, emit func(cookie uint64, name string, n Node, p Presence) bool) {
}
func (r Reader) Entries(dir Node) (present, hidden int)   { panic("to come") }
func (r Reader) Target(n Node) (string, bool)             { panic("to come") }
func (r Reader) Xattr(n Node, name string) ([]byte, bool) { panic("to come") }
func (r Reader) Xattrs(n Node) []string                   { panic("to come") }

// Tx reads the state as it was before the update, and collects what it changes.
type Tx struct{ Reader }

func (tx *Tx) Now() int64                                 { panic("to come") }
func (tx *Tx) NewNode() (Node, error)                     { panic("to come") }
func (tx *Tx) PutInode(in Inode)                          {}
func (tx *Tx) SetEntry(dir Node, name string, n Node)     {}
func (tx *Tx) Hide(dir Node, name string)                 {}
func (tx *Tx) ClearEntry(dir Node, name string)           {}
func (tx *Tx) SetTarget(n Node, target string)            {}
func (tx *Tx) SetXattr(n Node, name string, value []byte) {}
func (tx *Tx) RemoveXattr(n Node, name string)            {}

// Section names the bytes of an open file that a base's contents are, so that they can be cloned.
type Section interface {
	Section() (f *os.File, off, n int64)
}

type File struct{}

func (f *File) Done()                                                      {}
func (f *File) ReadAt(p []byte, off int64) (int, error)                    { panic("to come") }
func (f *File) WriteAt(p []byte, off int64) (int, error)                   { panic("to come") }
func (f *File) CopyUp(base io.ReaderAt, size int64) error                  { panic("to come") }
func (f *File) Truncate(size int64) error                                  { panic("to come") }
func (f *File) Fallocate(mode uint32, off, n int64) error                  { panic("to come") }
func (f *File) Seek(off int64, whence int) (int64, error)                  { panic("to come") }
func (f *File) Size() (int64, error)                                       { panic("to come") }
func (f *File) Blocks() (int64, error)                                     { panic("to come") }
func (f *File) Sync() error                                                { panic("to come") }
func (f *File) CopyRange(from *File, fromOff, off, n int64) (int64, error) { panic("to come") }

// IfBase calls g, under the file's lock, if its contents are the base's.
func (f *File) IfBase(g func() error) error { panic("to come") }
