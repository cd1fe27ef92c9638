package index

import (
	"github.com/artifactfs/artifactfs/object"
)

// Stat is what git compares with lstat(2) to see whether a file may have changed.
type Stat struct {
	Ctime, Mtime             int64 // nanoseconds since 1970
	Dev, Ino, UID, GID, Size uint32
}

// Entry is one path of the index.
type Entry struct {
	Path string // relative to the root, without a leading slash
	Mode object.Mode
	ID   object.ID
	// Stat of the file. Size 0 of a file that is not empty makes git compare contents when it has to look at all.
	Stat Stat
	// Valid says that the file is as the index has it, as of the index's Token. It is never so for a gitlink.
	Valid bool

	Stage        uint8 // 1 to 3 in a conflict
	AssumeValid  bool
	SkipWorktree bool
	IntentToAdd  bool
}

// Index is the content of an index file.
type Index struct {
	Format  object.Format
	Version uint32  // 2 and 3 are chosen by need; 4 stays
	Entries []Entry // in git's order: by the path's bytes, then by stage
	Tree    *Tree   // the trees that the entries stand for; nil: none is known
	// Token is what the file system monitor is asked with; "": there is no monitor, and no entry is valid.
	Token     string
	Untracked *Untracked // nil: none
	Sparse    bool       // directories outside of the sparse checkout may be entries of mode ModeDir, with a slash behind
	Undo      []byte     // resolve-undo extension as it was read
}

// Tree is a directory of the index with the id of the tree object that holds exactly its entries.
type Tree struct {
	Name  string // of the directory in its parent
	ID    object.ID
	Count int // entries below it; negative: what is below has changed, and ID means nothing
	Sub   []*Tree
}

// Untracked is what is known of paths that are in the working tree and not in the index.
type Untracked struct {
	Ident        string // where this holds; see Ident
	Flags        uint32 // how git lists untracked paths; see ShowNormal
	InfoExclude  Exclude
	ExcludesFile Exclude // of core.excludesFile
	PerDirectory string  // name of the ignore files
	Root         *Directory
}

// Exclude is a file with ignore rules: its stat data, and the id git gives its content (see ExcludeID). No id: there is none.
type Exclude struct {
	Stat Stat
	ID   object.ID
}

// Directory is a directory of the working tree.
type Directory struct {
	Name      string
	Valid     bool // what follows is right
	CheckOnly bool // git looked only for whether anything is in it
	Stat      Stat
	Ignore    object.ID // of its ignore file; see Untracked
	Files     []string  // untracked names
	Sub       []*Directory
}
