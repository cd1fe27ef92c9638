package control

// Receipt states what is not as it was: for a fork or a resumed session, what is not in the new mount although it was
// in the tree that the checkpoint was made of, and was not carried (Carried); for a restore, what the restore has not
// changed. A reply has no receipt if nothing is missing. The numbers are those of Paths, in which a directory counts
// once with everything below it.
type Receipt struct {
	Ignored   int64 `json:"ignored"`   // paths that git ignores
	Secrets   int64 `json:"secrets"`   // paths that look like secrets
	TooLarge  int64 `json:"too_large"` // files that are too large for a checkpoint
	Excluded  int64 `json:"excluded"`  // paths that the options of the session exclude
	Special   int64 `json:"special"`   // sockets, fifos, devices and nested repositories
	Worktrees int64 `json:"worktrees"` // linked worktrees that could not be read
	// Unfiltered is the number of files that a required filter could not convert: others, or none, are in the checkpoint.
	Unfiltered int64 `json:"unfiltered,omitempty"`
	// Uncarried is the number of the further paths that could not be carried to a fork: tracked files that were moved to
	// an ignored path and never read ("unread"), those in submodules ("submodule"), and those where the fork has something
	// else ("place").
	Uncarried int64 `json:"uncarried,omitempty"`
	// Others is the number of further paths; the checkpoint names only the first hundred.
	Others int64     `json:"others"`
	Paths  []LeftOut `json:"paths"` // first the paths that a user expects least; at most 100
	// Submodules are the paths of submodules that are mounted in the parent of a fork, but not in the fork.
	Submodules []string `json:"submodules,omitempty"`
}

// NewReceipt returns the receipt for the paths that a checkpoint leaves out. all is their number, of which paths has
// the first hundred at least. NewReceipt returns nil if nothing is missing.
func NewReceipt(paths []LeftOut, all int64, submodules []string) *Receipt {
	if len(paths) == 0 && len(submodules) == 0 {
		return nil
	}
	paths = paths[:min(len(paths), mostLeftOut)]
	r := &Receipt{Paths: append([]LeftOut{}, paths...), Submodules: submodules}
	if len(paths) >= mostLeftOut {
		r.Others = max(0, all-int64(len(paths)))
	}
	r.count()
	return r
}

// mostLeftOut is the maximum number of paths that a checkpoint names among those that it leaves out.
const mostLeftOut = 100

// count sets the numbers to those of r.Paths.
func (r *Receipt) count() {
	numbers := map[string]*int64{"ignored": &r.Ignored, "secret": &r.Secrets, "size": &r.TooLarge,
		"excluded": &r.Excluded, "type": &r.Special, "worktree": &r.Worktrees,
		"filter": &r.Unfiltered,
		"unread": &r.Uncarried, "submodule": &r.Uncarried, "place": &r.Uncarried}
	for _, n := range numbers {
		*n = 0
	}
	for _, p := range r.Paths {
		if n := numbers[p.Why]; n != nil {
			*n++
		}
	}
}

// Without returns the receipt without the paths for which there returns true, or nil if nothing is left in it. r may be
// nil, and is not changed.
func (r *Receipt) Without(there func(path string) bool) *Receipt {
	if r == nil {
		return nil
	}
	rest := *r
	rest.Paths = []LeftOut{}
	for _, p := range r.Paths {
		if !there(p.Path) {
			rest.Paths = append(rest.Paths, p)
		}
	}
	if len(rest.Paths) == 0 && len(rest.Submodules) == 0 && rest.Others == 0 {
		return nil
	}
	rest.count()
	return &rest
}
