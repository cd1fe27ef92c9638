package session

import (
	"time"

	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
)

// PointID is a ULID: 26 digits of Crockford's base 32, which sort by time.
type PointID string

// Point is a commit whose tree is the working tree. Its parents are the point before in the same segment, if there is
// one, then the commit of its State. What is not in git's own headers stands in trailers of its message.
type Point struct {
	ID      PointID
	Commit  object.ID // of the point
	Tree    object.ID
	State   object.ID // commit of the State
	Session string
	Lane    string
	Segment int
	Reason  Reason
	Message string // what the user said; "": nothing
	Time    time.Time
	Head    object.ID // commit that HEAD was; zero: unborn
	Branch  string    // full name of the ref that HEAD named; "": it was detached
	Prev    PointID   // also across segments; "": the first
	Base    object.ID // commit that the session began with, which the mounted remote has; zero: unborn
	Changed int64     // paths that differ from the point before
	Bytes   int64     // of contents that are new in it
	Left    int64     // paths that it does not hold
}

// State is what git had beside the files of a point.
type State struct {
	Branch  string               // as in Point
	Head    object.ID            // as in Point
	Refs    []packedrefs.Ref     // refs/heads/, refs/tags/, refs/notes/ that the remote does not have just so, and refs/stash
	Remote  []packedrefs.Ref     // refs/remotes/ as they were
	Stashes []Stash              // newest first
	Tags    map[object.ID][]byte // annotated tags made here that Refs name, as git stores them: no commit leads to one
	Index   Index
	Dirs    map[string]uint32 // permissions of the point's empty directories that are not 0755
	Files   map[string]File   // of the git directory, by their paths in it: MERGE_HEAD, rebase-merge/done, ...
	Left    []LeftOut         // that the point does not hold, the first hundred; not part of what makes two States differ
}

// LeftOut is a path that a point does not hold; of a directory (with a slash behind) nothing below it is held.
type LeftOut struct {
	Path string `json:"path"`
	Why  Why    `json:"why"`
	Size int64  `json:"size,omitempty"` // bytes, of a file
}

// Why says why a path was left out.
type Why string

const (
	Ignored  Why = "ignored"  // git ignores it
	Secret   Why = "secret"   // it looks like one
	Excluded Why = "excluded" // a glob says so
	TooLarge Why = "size"     // it is over the limit
	NoFile   Why = "type"     // git keeps no fifos, sockets, devices and repositories in repositories
)

// Stash is an entry of the reflog of refs/stash.
type Stash struct {
	Commit  object.ID
	Message string
}

// File is a file of the git directory.
type File struct {
	Content []byte
	Exec    bool
}

// Index is what was staged.
type Index struct {
	Tree    object.ID    // of all entries of stage 0
	Special []IndexEntry // what a tree cannot say
}

// IndexEntry is an entry of the index that a tree cannot tell of.
type IndexEntry struct {
	Path         string
	Mode         object.Mode
	ID           object.ID // zero with IntentToAdd
	Stage        uint8     // 1 to 3 in a conflict
	AssumeValid  bool
	SkipWorktree bool
	IntentToAdd  bool
}
