package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/control"
)

// HeadFlags are the flags that state where HEAD of a new session is. They are those of git worktree add.
type HeadFlags struct {
	branch, reset string
	detach        bool
}

// Add adds the flags to cmd.
func (h *HeadFlags) Add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&h.branch, "new-branch", "b", "", "create the branch `NAME` there, and check it out")
	f.StringVarP(&h.reset, "reset-branch", "B", "", "the same, and move a branch `NAME` that the new session has already")
	f.BoolVarP(&h.detach, "detach", "d", false, "detach HEAD there")
}

// Head returns what the flags of cmd state, or nil if none was given.
func (h *HeadFlags) Head(cmd *cobra.Command) (*control.NewHead, error) {
	given := 0
	for _, name := range []string{"new-branch", "reset-branch", "detach"} {
		if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() != "false" {
			given++
		}
	}
	switch {
	case given > 1:
		return nil, Usage(cmd, errors.New("-b, -B and --detach exclude each other"))
	case given == 0:
		return nil, nil
	case h.detach:
		return &control.NewHead{Detach: true}, nil
	case h.reset != "":
		return &control.NewHead{Branch: h.reset, Reset: true}, nil
	case h.branch != "":
		return &control.NewHead{Branch: h.branch}, nil
	}
	return nil, Usage(cmd, errors.New("name of the branch is empty"))
}
