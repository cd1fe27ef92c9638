package index

import (
	"github.com/artifactfs/artifactfs/git/object"
)

// Stat contains the fields of lstat(2) that git compares to determine whether a file may have changed.
type Stat struct {
	Ctime, Mtime             int64  // times in nanoseconds since 1970
	Dev, Ino, UID, GID, Size uint32 // truncated to 32 bits, as in git; Size is in bytes
}

// Entry is one entry of the index: a path, or one stage of a path that has a conflict.
type Entry struct {
	Path string      // relative to the root of the working tree, without a leading slash
	Mode object.Mode // type and permissions of the file
	ID   object.ID   // a blob, the commit of a submodule, or a tree in a sparse index
	// Stat is the stat data of the file. If the size in Stat is 0 and the file is not empty, git compares the contents of
	// the file whenever git checks the file.
	Stat Stat
	// Valid means that, according to the file system monitor, the file has not changed since the position Index.Token.
	// Valid is always false for a submodule.
	Valid bool

	Stage        uint8 // 1 to 3 for a conflict, otherwise 0
	AssumeValid  bool  // flag of git update-index --assume-unchanged
	SkipWorktree bool  // flag of git update-index --skip-worktree
	IntentToAdd  bool  // flag of git add --intent-to-add
}

// Index is the contents of an index file.
type Index struct {
	Format object.Format // object format of the IDs
	// version of the file: 4; with any other value, WriteTo chooses 2 or 3 by the flags of the entries
	Version uint32
	Entries []Entry // in git's order: by the bytes of the path, and then by stage
	Tree    *Tree   // cache tree (TREE), with the ids of the trees that the entries form; nil if there is none
	// Token is the position from which git's next query to the file system monitor starts. If Token is "", there is no
	// monitor, and no entry is Valid.
	Token     string
	Untracked *Untracked // untracked cache (UNTR); nil if there is none
	Sparse    bool       // sparse index (sdir): a directory outside the sparse checkout may be one entry of mode ModeDir
	Undo      []byte     // resolve-undo extension (REUC), not parsed
}

// Tree is a directory in the cache tree. ID is the id of the tree object that contains exactly the index entries in
// this directory.
type Tree struct {
	Name  string    // name of the directory; "" for the root
	ID    object.ID // id of the tree; not valid if Count is negative
	Count int       // number of entries below the directory; negative if the id is not known because an entry has changed
	Sub   []*Tree   // in the order of compareTrees
}

// Untracked is the untracked cache: it records which paths of the working tree are not in the index, and under which
// conditions git has determined this. If a condition has changed, git discards the cache.
type Untracked struct {
	Ident        string     // working tree for which the cache is valid; see Ident
	Flags        uint32     // how git lists untracked files: ShowAll or ShowNormal
	InfoExclude  Exclude    // state of the file .git/info/exclude
	ExcludesFile Exclude    // state of the file that core.excludesFile names
	PerDirectory string     // name of the ignore files in directories, such as .gitignore
	Root         *Directory // root of the working tree; nil if the cache is empty
}

// Exclude describes a file with ignore rules by its stat data and its ExcludeID. If ID is zero, the file does not
// exist.
type Exclude struct {
	Stat Stat
	ID   object.ID
}

// Directory is a directory of the working tree in the untracked cache.
type Directory struct {
	Name      string       // "" for the root
	Valid     bool         // the fields below are valid; if false, git searches the directory
	CheckOnly bool         // git has only determined whether the directory contains an untracked file
	Stat      Stat         // stat data of the directory; if the directory has other data, git searches it again
	Ignore    object.ID    // ExcludeID of the directory's ignore file; zero if the file is recorded as missing
	Files     []string     // names of the untracked files and directories in the directory
	Sub       []*Directory // sorted by name
}
