package openapi

import (
	"fmt"
	"slices"
	"strings"
)

const (
	parameterRef = "#/components/parameters/"
	responseRef  = "#/components/responses/"
	schemaRef    = "#/components/schemas/"
)

// Operations returns all operations in the order of the document.
func (d *Document) Operations() []*Operation {
	var all []*Operation
	for _, path := range d.Paths.Names {
		methods := d.Paths.By[path]
		for _, method := range methods.Names {
			all = append(all, methods.By[method])
		}
	}
	return all
}

// resolve replaces references to parameters and responses, and sets the path and the method of each operation.
func (d *Document) resolve() error {
	for _, path := range d.Paths.Names {
		methods := d.Paths.By[path]
		for _, method := range methods.Names {
			o := methods.By[method]
			o.Method, o.Path = strings.ToUpper(method), path
			if err := d.resolveOperation(o); err != nil {
				return fmt.Errorf("resolve %s: %w", o.ID, err)
			}
		}
	}
	return nil
}

func (d *Document) resolveOperation(o *Operation) error {
	for i, p := range o.Parameters {
		if p.Ref == "" {
			continue
		}
		to, known := d.Components.Parameters.By[strings.TrimPrefix(p.Ref, parameterRef)]
		if !known {
			return fmt.Errorf("unknown parameter %s", p.Ref)
		}
		o.Parameters[i] = to
	}
	for status, r := range o.Responses.By {
		if r.Ref == "" {
			continue
		}
		to, known := d.Components.Responses.By[strings.TrimPrefix(r.Ref, responseRef)]
		if !known {
			return fmt.Errorf("unknown response %s", r.Ref)
		}
		o.Responses.By[status] = to
	}
	return nil
}

// Success returns the answer to a request that succeeds, and its status.
func (o *Operation) Success() (status string, r *Response) {
	i := slices.IndexFunc(o.Responses.Names, func(s string) bool { return strings.HasPrefix(s, "2") })
	if i < 0 {
		return "", &Response{}
	}
	status = o.Responses.Names[i]
	return status, o.Responses.By[status]
}

// In returns the parameters of the path or of the query, in order.
func (o *Operation) In(place string) []*Parameter {
	var some []*Parameter
	for _, p := range o.Parameters {
		if p.In == place {
			some = append(some, p)
		}
	}
	return some
}

// Name returns the name of the schema to which a schema refers; "" if it refers to none.
func (s *Schema) Name() string { return strings.TrimPrefix(s.Ref, schemaRef) }
