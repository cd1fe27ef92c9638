package capture

import (
	"context"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// DefaultMaxFileSize is the default of Rules.MaxFileSize, in bytes.
const DefaultMaxFileSize = 50 << 20

// Options configures a Capturer.
type Options struct {
	// Tree is the working tree of which checkpoints are made.
	Tree *worktree.Tree
	// WriteBack writes the kernel's cached pages back to the Tree; nil if the kernel caches no writes.
	WriteBack func(ctx context.Context) error
	// Dir is the absolute path at which the Tree is mounted; if Dir is empty, linked worktrees inside it are not found.
	Dir string
	// GitDir is the git directory of the mount.
	GitDir string
	// Environment is the environment of the user whose configuration decides about ignored files and conversions, and of
	// the programs that convert files. If it is empty, that of this process is used.
	Environment []string
	// Repo stores the checkpoints of the session.
	Repo *session.Repo
	// Memory is the name of a file that stores what the next checkpoint needs to know about the previous one (type
	// memory), so that it reads only the changes since then. If Memory is empty, this is not stored.
	Memory string
	// Lane is the name of the lane (chain of checkpoints) to which checkpoints are added; "" means "main".
	Lane string
	// Segment is the lowest segment number of the lane that this writer may use. Lower numbers belong to another writer.
	Segment int
	// Base is the base commit of the session; zero if the branch is unborn.
	Base object.ID
	// BaseTree is the base tree of Tree; zero stands for an empty tree.
	BaseTree object.ID
	// InitialState is the state of git in a new mount of a commit, before the user changes anything; nil if that state is
	// unknown.
	InitialState *InitialState
	// Branch is the full name of the branch on which a new git directory starts instead of that of the checkpoint; "":
	// none. If Detach is set, HEAD of it is detached.
	Branch string
	Detach bool
	Rules  Rules
	// LinksAsFiles states that the Tree shows symbolic links as files (worktree.Modes). A file whose path is a symbolic
	// link in the index is then stored as a symbolic link. If the path is not in the index, HEAD decides, and if HEAD does
	// not contain it either, the previous checkpoint.
	LinksAsFiles bool
	// Converts reports whether the attributes in the mount may make git convert the file at path, so that the file's blob
	// differs from the file's contents. If Converts is nil, no file is converted.
	Converts func(ctx context.Context, path string) (bool, error)
	// Blob returns the contents of an ignore file or .gitattributes file of the base tree whose blob is not in the
	// Repo. Blob may fetch the contents. If Blob is nil, such blobs count as missing.
	Blob func(ctx context.Context, path string, id object.ID) ([]byte, error)
	// Trees returns the entries of a tree that is not in the Repo because it is still being fetched. If Trees is nil, such
	// trees count as missing.
	Trees func(ctx context.Context, id object.ID) ([]object.TreeEntry, error)
	// OthersNotes returns the commit that a git notes ref got when notes of other sessions were merged into it, or zero
	// if no such merge was made. A notes ref that changed to this commit is not a reason to make a checkpoint.
	// OthersNotes is nil if there are no other sessions.
	OthersNotes func(ref string) object.ID
	Log         *zap.Logger // nil disables logging
}
