package transport

import (
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/git/refname"
)

// maxRefs is the maximum number of refs that a server may list.
const maxRefs = 4 << 20

// refsMessage returns the ls-refs request. It asks for the targets of annotated tags and of symbolic refs, and
// restricts the listing to prefixes.
func refsMessage(caps Capabilities, prefixes []string) ([]byte, error) {
	b := command(caps, "ls-refs", 64*len(prefixes))
	b = pktline.AppendLine(b, "peel")
	b = pktline.AppendLine(b, "symrefs")
	if caps.unborn {
		b = pktline.AppendLine(b, "unborn")
	}
	for _, p := range prefixes {
		if len(p) > 4096 || strings.ContainsAny(p, "\n\x00") {
			return nil, fmt.Errorf("invalid ref prefix %.80q", p)
		}
		b = pktline.AppendLine(b, "ref-prefix "+p)
	}
	return pktline.AppendFlush(b), nil
}

// parseRefs parses an answer to ls-refs. The protocol allows servers to ignore the prefixes, so parseRefs drops refs
// whose names do not begin with one of the prefixes. It also drops refs with invalid names.
func parseRefs(p *pktReader, f object.Format, prefixes []string) (Refs, error) {
	var refs Refs
	for n := 0; ; n++ {
		kind, line, err := p.line()
		if err != nil {
			return refs, cut(err)
		}
		if kind == pktline.Flush {
			return refs, nil
		}
		if kind != pktline.Data || n >= maxRefs {
			return refs, fmt.Errorf("%w: unexpected %v in place of ref %d", errProtocol, kind, n)
		}
		ref, err := parseRef(f, string(line))
		if err != nil {
			return refs, err
		}
		switch {
		case !wanted(ref.Name, prefixes):
		case ref.ID.IsZero():
			// A ref without an id is a HEAD whose branch does not exist yet. The target of HEAD is the branch that the first
			// commit will create.
			if ref.Name == "HEAD" {
				refs.Unborn = ref.Target
			}
		// Drop names that git would refuse, because such a name could be a path outside of the directory of refs.
		case refname.Valid(ref.Name):
			refs.List = append(refs.List, ref)
		}
	}
}

// wanted reports whether name begins with one of the prefixes. If there are no prefixes, every name is wanted.
func wanted(name string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return len(prefixes) == 0
}

// parseRef parses a line "<id> <name>" and the attributes that follow the name. The word "unborn" in place of the id
// leaves ID zero.
func parseRef(f object.Format, line string) (Ref, error) {
	var ref Ref
	id, rest, ok := strings.Cut(line, " ")
	name, attributes, more := strings.Cut(rest, " ")
	if !ok || name == "" || more && attributes == "" {
		return ref, fmt.Errorf("%w: invalid ref line %.120q", errProtocol, line)
	}
	ref.Name = name
	var err error
	if id != "unborn" {
		if ref.ID, err = parseID(f, id); err != nil {
			return ref, err
		}
	}
	// Unknown attributes are ignored.
	for more {
		var a string
		a, attributes, more = strings.Cut(attributes, " ")
		if target, ok := strings.CutPrefix(a, "symref-target:"); ok {
			if !refname.Valid(target) {
				return ref, fmt.Errorf("%w: invalid symbolic ref target in line %.120q", errProtocol, line)
			}
			ref.Target = target
		} else if peeled, ok := strings.CutPrefix(a, "peeled:"); ok {
			if ref.Peeled, err = parseID(f, peeled); err != nil {
				return ref, err
			}
		}
	}
	if ref.ID.IsZero() && (ref.Target == "" || !ref.Peeled.IsZero()) {
		return ref, fmt.Errorf("%w: invalid ref line %.120q", errProtocol, line)
	}
	return ref, nil
}

// parseID parses an id in the repository's hash format. It returns an error for the null id.
func parseID(f object.Format, s string) (object.ID, error) {
	id, err := object.ParseIDOf(f, s)
	if err == nil && strings.Trim(s, "0") == "" {
		err = fmt.Errorf("object ID has only zeros")
	}
	if err != nil {
		return object.ID{}, fmt.Errorf("%w: %w", errProtocol, err)
	}
	return id, nil
}
