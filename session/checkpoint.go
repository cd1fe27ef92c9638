package session

import (
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/session/ulid"
)

// CheckpointID identifies a checkpoint. It is a ULID: 26 digits of Crockford's base 32, which sort by time.
type CheckpointID = ulid.ID

// ErrCheckpointID reports a text that is not a CheckpointID.
var ErrCheckpointID = ulid.ErrID

// NewCheckpointID returns an ID for the time now. It sorts as ulid.New states.
func NewCheckpointID(now time.Time) CheckpointID { return ulid.New(now) }

// NewCheckpointIDAfter returns an ID that sorts after the ID after, and after other IDs as ulid.NewAfter states.
func NewCheckpointIDAfter(now time.Time, after CheckpointID) CheckpointID {
	return ulid.NewAfter(now, after)
}

// ParseCheckpointID parses an ID in upper or lower case and returns it in upper case. It returns ErrCheckpointID if
// text is not an ID.
func ParseCheckpointID(text string) (CheckpointID, error) { return ulid.Parse(text) }

// Checkpoint describes a checkpoint. A checkpoint is stored as a commit whose tree is the working tree at one moment.
// The parents of the commit are the previous checkpoint of the same segment, if any, and the commit that stores the
// State. Fields for which a git commit has no header are stored as trailers of the commit message.
type Checkpoint struct {
	ID      CheckpointID // ULID of the checkpoint
	Commit  object.ID    // commit that stores the checkpoint
	Tree    object.ID    // tree of the files in the working tree
	State   object.ID    // commit that stores the State
	Session string       // session that the checkpoint was made in
	Lane    string       // lane of the checkpoint; a lane is the chain of checkpoints of one writer
	Segment int          // number of the lane's segment that contains the checkpoint, counted from 1
	Reason  Reason       // reason why the checkpoint was made
	Message string       // message of the user; "" if there is none
	Time    time.Time    // time of the checkpoint in whole seconds, as git stores times
	Head    object.ID    // commit of HEAD; zero if HEAD was on a branch without a commit
	Branch  string       // full name of the ref that HEAD pointed to; "" if HEAD was detached
	// previous checkpoint of the lane, in this segment or an earlier one; "" for the first checkpoint of the lane
	Prev    CheckpointID
	Base    object.ID // commit of the mounted remote that the session started from; zero if it started without a commit
	Changed int64     // number of paths that differ from the previous checkpoint
	Bytes   int64     // total size in bytes of the contents that are new in this checkpoint
	Left    int64     // number of paths in the working tree that the checkpoint leaves out
}

// State is the state of git that belongs to a checkpoint: everything that git stores beside the files of the working
// tree. EncodeState stores it as a commit, which is a parent of the checkpoint's commit.
type State struct {
	Branch  string               // full name of the ref that HEAD pointed to; "" if HEAD was detached
	Head    object.ID            // commit of HEAD; zero if HEAD was on a branch without a commit
	Refs    []packedrefs.Ref     // refs/stash, and the branches, tags and notes that differ from the mounted remote
	Remote  []packedrefs.Ref     // refs below refs/remotes/ with their values at the time of the checkpoint
	Stashes []Stash              // entries of the reflog of refs/stash, newest first
	Tags    map[object.ID][]byte // contents of annotated tags that were created in the session, by ID
	Index   Index                // git's index: a tree, and the entries that a tree cannot express
	// permissions of empty directories other than 0755, by path: git's trees cannot store them
	Dirs  map[string]uint32
	Files map[string]File // files of the git directory, such as MERGE_HEAD, by path
	Left  []LeftOut       // first hundred paths that the checkpoint leaves out; comparisons ignore them
}

// LeftOut is a path of the working tree that a checkpoint does not contain, or contains with earlier contents. If the
// path ends with a slash, it is a directory and the checkpoint contains nothing below it.
type LeftOut struct {
	Path string `json:"path"`           // relative to the root of the working tree
	Why  Why    `json:"why"`            // reason why the path was left out
	Size int64  `json:"size,omitempty"` // size of the file in bytes; 0 for a directory
}

// Why is the reason why a path was left out of a checkpoint. It is stored in the State and shown to users.
type Why string

// Reasons to leave a path out.
const (
	Ignored  Why = "ignored"  // git ignores the path
	Secret   Why = "secret"   // the name or the contents look like a secret
	Excluded Why = "excluded" // an exclude pattern of the session matches the path
	TooLarge Why = "size"     // the file is larger than the configured limit
	Linked   Why = "worktree" // a linked worktree (git worktree add) that cannot be read or is excluded
	NoFile   Why = "type"     // the path is a fifo, socket, device or nested repository, which git cannot store as a file
	// a required filter of git could not convert the file; the checkpoint has the file as the previous one had it, or not
	Unfiltered Why = "filter"
)

// Stash is one entry of the reflog of refs/stash.
type Stash struct {
	Commit  object.ID // commit of the stash
	Message string    // message of the reflog entry
}

// File holds the contents of a file of the git directory, and whether it is executable.
type File struct {
	Content []byte // contents of the file
	Exec    bool   // the file has the executable permission
}

// Index is the contents of git's index, as a tree plus the entries that a tree cannot express.
type Index struct {
	Tree    object.ID    // tree of all entries of stage 0
	Special []IndexEntry // entries that Tree lacks or cannot express in full
}

// IndexEntry is an entry of the index that a tree cannot express: a stage of a conflict, an entry with a flag, or an
// intent to add.
type IndexEntry struct {
	Path         string      // path relative to the root of the working tree
	Mode         object.Mode // type and permissions
	ID           object.ID   // blob or gitlink; zero if IntentToAdd
	Stage        uint8       // 1 to 3 for an entry of a conflict, 0 for other entries
	AssumeValid  bool        // flag of git update-index --assume-unchanged
	SkipWorktree bool        // flag of git update-index --skip-worktree
	IntentToAdd  bool        // flag of git add --intent-to-add
}
