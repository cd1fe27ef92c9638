package session

import (
	"time"

	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
)

// PointID is a ULID: 26 digits of Crockford's base 32, which sort by time.
type PointID string

// Point is a commit whose tree is the working tree. Its parents are the checkpoint before in the same segment, if there is
// one, then the commit of its State. What is not in git's own headers stands in trailers of its message.
type Point struct {
	ID      PointID
	Commit  object.ID // of the checkpoint
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
	Changed int64     // paths that differ from the checkpoint before
	Bytes   int64     // of contents that are new in it
	Left    int64     // paths that it does not hold
}

// State is the state of git that belongs to a checkpoint. It is stored in the second commit of the checkpoint.
type State struct {
	Branch  string               // as in Point
	Head    object.ID            // as in Point
	Refs    []packedrefs.Ref     // refs/heads/, refs/tags/, refs/notes/ whose values on the mounted remote differ, and refs/stash
	Remote  []packedrefs.Ref     // refs/remotes/ as they were
	Stashes []Stash              // newest first
	Tags    map[object.ID][]byte // annotated tags made here that Refs name, as git stores them: no commit leads to one
	Index   Index
	Dirs    map[string]uint32 // permissions of empty directories that are not 0755: git's trees store none
	Files   map[string]File   // of the git directory, by their paths in it: MERGE_HEAD, rebase-merge/done, ...
	Left    []LeftOut         // paths that the checkpoint does not hold, the first hundred; not compared between States
}

// LeftOut is a path that a checkpoint does not hold. A path that ends with a slash stands for everything below it.
type LeftOut struct {
	Path string `json:"path"`
	Why  Why    `json:"why"`
	Size int64  `json:"size,omitempty"` // bytes, of a file
}

// Why is the reason why a path was left out.
type Why string

const (
	Ignored  Why = "ignored"  // git ignores it
	Secret   Why = "secret"   // its name or contents look like a secret
	Excluded Why = "excluded" // an exclude pattern matches
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

// Index is the index of git.
type Index struct {
	Tree    object.ID    // of all entries of stage 0
	Special []IndexEntry // entries that a tree cannot express
}

// IndexEntry is an entry of the index that a tree cannot express: a conflict, a flag, an intent to add.
type IndexEntry struct {
	Path         string
	Mode         object.Mode
	ID           object.ID // zero with IntentToAdd
	Stage        uint8     // 1 to 3 in a conflict
	AssumeValid  bool
	SkipWorktree bool
	IntentToAdd  bool
}
