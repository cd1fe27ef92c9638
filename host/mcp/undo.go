package mcp

import (
	"context"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/undo"
)

// undoInput has the arguments of the tool undo.
type undoInput struct {
	Of     string `json:"of,omitempty" jsonschema:"turn number or call id; default: last call that changed files"`
	Others string `json:"others,omitempty" jsonschema:"keep or include files that somebody else has changed"`
	DryRun bool   `json:"dry_run,omitempty" jsonschema:"change nothing, return what would change"`
	Redo   bool   `json:"redo,omitempty" jsonschema:"take back the last undo instead; of is not used"`
}

// choiceOf returns the choice that the argument others means.
func choiceOf(others string) (undo.Choice, error) {
	switch others {
	case "":
		return undo.Refuse, nil
	case "keep":
		return undo.Keep, nil
	case "include":
		return undo.Include, nil
	}
	return 0, &control.Error{Code: control.ExitUsage, Kind: control.CodeUsage, Cause: "others must be keep or include"}
}

// takeBack undoes what a call or turn has changed, or redoes the last undo.
func takeBack(ctx context.Context, w Session, in undoInput) (undo.Reply, error) {
	others, err := choiceOf(in.Others)
	if err != nil {
		return undo.Reply{}, err
	}
	carryOut, o := undo.Undo, undo.Options{Dir: w.Mount.Dir, Name: in.Of, Others: others, DryRun: in.DryRun}
	if in.Redo {
		carryOut = undo.Redo
	}
	r, err := carryOut(ctx, w.Client, o)
	if e := control.AsError(err); e != nil && e.ErrorCode() == control.CodeConflict && e.Verb == "" {
		e.Hint = "with others=keep these paths stay as they are, with others=include they are restored, too"
		return r, e
	}
	return r, err
}
