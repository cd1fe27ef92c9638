package index

import (
	"github.com/artifactfs/artifactfs/object"
)

// Stat is the part of lstat(2) that git compares to find out whether a file may have changed.
type Stat struct {
	Ctime, Mtime             int64  // nanoseconds since 1970
	Dev, Ino, UID, GID, Size uint32 // truncated to 32 bits, as git does; Size is in bytes
}

// Entry is one entry of the index: a path, or one stage of a path with a conflict.
type Entry struct {
	Path string      // relative to the root of the working tree, without a leading slash
	Mode object.Mode // type and permissions
	ID   object.ID   // blob, commit of a submodule, or tree in a sparse index
	// Stat is the file's stat data. With a size of 0 git compares the contents of a file that is not empty, if it has
	// to look at the file at all.
	Stat Stat
	// Valid means that the file is as the index has it, according to the file system monitor at the index's Token. It
	// is always false for a gitlink.
	Valid bool

	Stage        uint8 // 1 to 3 in a conflict, otherwise 0
	AssumeValid  bool  // flag of git update-index --assume-unchanged
	SkipWorktree bool  // flag of git update-index --skip-worktree
	IntentToAdd  bool  // flag of git add --intent-to-add
}

// Index is the contents of an index file.
type Index struct {
	Format  object.Format // object format of the IDs
	Version uint32        // of the file; WriteTo chooses 2 or 3 by the flags of entries, unless this is 4
	Entries []Entry       // in git's order: by the bytes of the path, then by stage
	Tree    *Tree         // cache tree (TREE): IDs of the trees that the entries stand for; nil: none
	// Token is the token for the next query to the file system monitor; "": there is no monitor, and no entry is
	// Valid.
	Token     string
	Untracked *Untracked // untracked cache (UNTR); nil: none
	Sparse    bool       // sparse index (sdir): a directory outside of the sparse checkout may be one entry of mode ModeDir
	Undo      []byte     // resolve-undo extension (REUC), unparsed
}

// Tree is a directory of the index with the ID of the tree object that contains exactly its entries.
type Tree struct {
	Name  string    // name of the directory in its parent; "" for the root
	ID    object.ID // meaningless if Count is negative
	Count int       // number of entries below it; negative: an entry has changed and the ID is not known
	Sub   []*Tree   // in the order of compareTrees
}

// Untracked is the untracked cache: which paths of the working tree are not in the index, and under which conditions
// that was found out. git discards it if the conditions differ.
type Untracked struct {
	Ident        string     // working tree for which the cache is valid; see Ident
	Flags        uint32     // how git lists untracked paths: ShowAll or ShowNormal
	InfoExclude  Exclude    // .git/info/exclude
	ExcludesFile Exclude    // the file of core.excludesFile
	PerDirectory string     // name of the ignore files in directories, .gitignore
	Root         *Directory // root of the working tree; nil: nothing is cached
}

// Exclude is a file with ignore rules, by its stat data and ExcludeID. A zero ID means that the file does not exist.
type Exclude struct {
	Stat Stat
	ID   object.ID
}

// Directory is a directory of the working tree in the untracked cache.
type Directory struct {
	Name      string       // "" for the root
	Valid     bool         // the fields below are valid; otherwise git searches the directory
	CheckOnly bool         // git searched only for whether the directory contains any untracked file
	Stat      Stat         // stat data of the directory; git searches it again if they have changed
	Ignore    object.ID    // ID of its ignore file; zero: recorded as missing
	Files     []string     // names of untracked files and directories in it
	Sub       []*Directory // sorted by name
}
