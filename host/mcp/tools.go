package mcp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/artifactfs/artifactfs/control"
)

// Words in a list of tools that stand for several tools, and the tool that only its name adds, because it changes the
// mounted repository.
const (
	wordDefault = "default"
	wordAll     = "all"
	toolPromote = "promote"
)

// Tools is the choice of the tools that a server offers. ParseTools returns it; the zero value has no tools.
type Tools struct {
	list  string // argument of ParseTools
	names []string
}

// ParseTools parses a list of tools, separated by commas. A word is the name of a tool, "default" or "all", which does
// not include promote. "+NAME" means the default tools and the tool NAME.
func ParseTools(list string) (Tools, error) {
	t, defaults, all := Tools{list: list}, namesOf(defaultTools()), namesOf(allTools())
	for word := range strings.SplitSeq(list, ",") {
		name, plus := strings.CutPrefix(strings.TrimSpace(word), "+")
		if plus {
			t.names = append(t.names, defaults...)
		}
		switch {
		case name == wordDefault:
			t.names = append(t.names, defaults...)
		case name == wordAll:
			t.names = append(t.names, slices.DeleteFunc(slices.Clone(all), func(n string) bool { return n == toolPromote })...)
		case slices.Contains(all, name):
			t.names = append(t.names, name)
		default:
			return Tools{}, fmt.Errorf("unknown tool %q: want one of %s, %s or %s", name, strings.Join(all, ", "),
				wordDefault, wordAll)
		}
	}
	return t, nil
}

// offers reports whether the tool with this name is chosen.
func (t Tools) offers(name string) bool { return slices.Contains(t.names, name) }

// with returns the list that chooses one more tool.
func (t Tools) with(name string) string {
	if t.list == wordDefault {
		return "+" + name
	}
	return t.list + "," + name
}

// addTo adds all tools to the server. A call of a tool that is not chosen is an error that names the flag by which the
// user can choose it; onlyOffered removes these tools from the list that agents get.
func (t Tools) addTo(s *sdk.Server, find Find) {
	for _, one := range allTools() {
		if t.offers(one.name) {
			one.add(s, find)
			continue
		}
		s.AddTool(&sdk.Tool{Name: one.name, InputSchema: map[string]any{"type": "object"}},
			func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				r := &sdk.CallToolResult{}
				r.SetError(&control.Error{Code: control.ExitUsage, Kind: control.CodeUnsupported, Verb: "call", Object: one.name,
					Cause: "this server does not offer the tool", Hint: "start artifactfs mcp with --tools " + t.with(one.name)})
				return r, nil
			})
	}
}

// onlyOffered removes the tools that are not chosen from lists of tools.
func (t Tools) onlyOffered(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
		result, err := next(ctx, method, r)
		if listed, ok := result.(*sdk.ListToolsResult); ok && err == nil {
			listed.Tools = slices.DeleteFunc(listed.Tools, func(one *sdk.Tool) bool { return !t.offers(one.Name) })
		}
		return result, err
	}
}

// tool is one tool: its name, and a function that adds it to a server.
type tool struct {
	name string
	add  func(s *sdk.Server, find Find)
}

// allTools returns all tools.
func allTools() []tool {
	return slices.Concat(defaultTools(), moreTools(), cacheTools(), lockTools())
}

// namesOf returns the names of tools.
func namesOf(tools []tool) (names []string) {
	for _, t := range tools {
		names = append(names, t.name)
	}
	return names
}

// of returns a tool that calls the function do with the session that the function find returns. The tool has no schema
// of its results: agents can read them without it, and it would be several times as long as all the rest.
func of[In, Out any](about sdk.Tool, do func(context.Context, Session, In) (Out, error)) tool {
	call := func(ctx context.Context, find Find, in In) (any, error) {
		// The session is looked up at each call, because it may have been mounted again since the previous call.
		w, err := find(ctx, about.Name)
		if err == nil {
			var out Out
			if out, err = do(ctx, w, in); err == nil {
				return out, nil
			}
		}
		e := *control.AsError(err)
		// An error without an operation gets the name of the tool.
		if e.Verb == "" {
			e.Verb, e.Object = about.Name, w.Mount.Dir
		}
		return nil, &e
	}
	return tool{about.Name, func(s *sdk.Server, find Find) {
		sdk.AddTool(s, &about, func(ctx context.Context, _ *sdk.CallToolRequest, in In) (*sdk.CallToolResult, any, error) {
			out, err := call(ctx, find, in)
			return nil, out, err
		})
	}}
}

// looks returns the annotations of tools that change nothing. By annotations, clients decide when to ask the user for
// permission.
func looks() *sdk.ToolAnnotations {
	return &sdk.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: new(false)}
}

// adds returns the annotations of tools that add data without changing existing data.
func adds() *sdk.ToolAnnotations {
	return &sdk.ToolAnnotations{DestructiveHint: new(false), OpenWorldHint: new(false)}
}
