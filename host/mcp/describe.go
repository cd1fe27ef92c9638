package mcp

import (
	"context"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/session"
)

// describeInput holds the arguments of the tool describe.
type describeInput struct {
	Title      *string  `json:"title,omitempty" jsonschema:"new title, one line"`
	Task       *string  `json:"task,omitempty" jsonschema:"what the session is to achieve, as text or as a URL"`
	AddTags    []string `json:"add_tags,omitempty" jsonschema:"tags to add: letters, digits, dots, dashes, colons, slashes and equals signs"`
	RemoveTags []string `json:"remove_tags,omitempty" jsonschema:"tags to remove"`
}

// addDescribeTool adds the tool describe to the server, which reads and changes the title, the task and the tags of the
// session.
func addDescribeTool(s *sdk.Server, find Find) {
	no := new(bool)
	add(s, find, &sdk.Tool{Name: "describe", Annotations: &sdk.ToolAnnotations{DestructiveHint: no, IdempotentHint: true, OpenWorldHint: no},
		Description: "Describe the purpose of this session: set its title, its task and its tags, which users see in lists of sessions. " +
			"Without arguments, return these values, the owner, the time at which the session expires, and its hold."},
		func(ctx context.Context, w Session, in describeInput) (profile.Profile, error) {
			c := &profile.Change{Title: in.Title, Task: in.Task, AddTags: in.AddTags, DelTags: in.RemoveTags}
			info, err := w.Client.SessionSet(ctx, control.SessionSetRequest{Of: w.Mount.Dir, Actor: session.Actor(), Profile: c})
			return info.Profile, err
		})
}
