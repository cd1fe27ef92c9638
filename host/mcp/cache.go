package mcp

import (
	"context"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

// maxCached is the maximum size in bytes of a value that the tool cache_get returns. A larger value would fill the
// agent's context.
const maxCached = 256 << 10

// The arguments of the tools cache_get and cache_put.
type (
	cacheGetInput struct {
		Key string `json:"key" jsonschema:"key of the entry"`
	}
	cachePutInput struct {
		Key     string `json:"key" jsonschema:"key that names what the value was made from, such as the tree of the sources and the command"`
		Value   string `json:"value" jsonschema:"text to store, at most 512 KiB"`
		Seconds int64  `json:"ttl_seconds,omitempty" jsonschema:"time after which the entry expires; default: it does not expire"`
		Expect  string `json:"expect,omitempty" jsonschema:"SHA-256 that the present value must have, or none if there must be no entry"`
	}
)

// cacheOutput is the result of the tool cache_get: a cache entry with its value.
type cacheOutput struct {
	Entry control.CacheEntry `json:"entry"`
	Value string             `json:"value"`
}

// cacheTools returns the tools for cache entries.
func cacheTools() []tool {
	replaces := &sdk.ToolAnnotations{DestructiveHint: new(true), IdempotentHint: true, OpenWorldHint: new(false)}
	return []tool{
		of(sdk.Tool{Name: "cache_get", Annotations: looks(),
			Description: "Return a cache entry: a text, such as a test result, that a session of the same session remote " +
				"has stored under a key. Fails with the code not-found if there is no entry. Other users can change entries: " +
				"verify what you rely on."}, cacheGet),
		of(sdk.Tool{Name: "cache_put", Annotations: replaces,
			Description: "Store a text under a key for all sessions of the session remote, and replace an existing entry. " +
				"With expect, the entry is replaced only if its SHA-256 is the expected one; otherwise done is false, and " +
				"the present entry is returned."}, cachePut),
	}
}

// cachePut stores an entry whose value is text.
func cachePut(ctx context.Context, w Session, in cachePutInput) (control.CacheChangeReply, error) {
	return control.NewCacheClient(w.Client).Put(ctx, control.CachePutRequest{Of: w.Mount.Dir, Key: in.Key,
		Value: []byte(in.Value), Expect: in.Expect, TTL: time.Duration(in.Seconds) * time.Second, Actor: session.Actor()})
}

// cacheGet implements the tool cache_get: it returns a cache entry. It returns an error if the value is not text or too
// long.
func cacheGet(ctx context.Context, w Session, in cacheGetInput) (cacheOutput, error) {
	r, err := control.NewCacheClient(w.Client).Get(ctx, control.CacheGetRequest{Of: w.Mount.Dir, Key: in.Key})
	if err == nil && (len(r.Value) > maxCached || !utf8.Valid(r.Value)) {
		err = &control.Error{Code: control.ExitFailed, Verb: "cache_get", Object: in.Key,
			Cause: "value is longer than 256 KiB or not text",
			Hint:  "run artifactfs session cache get to write it to a file"}
	}
	if err != nil {
		return cacheOutput{}, err
	}
	return cacheOutput{r.Entry, string(r.Value)}, nil
}
