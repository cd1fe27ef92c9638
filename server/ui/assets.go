package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
)

//go:embed assets/*
var assetFiles embed.FS

// assetTypes are the content types of the files in the directory assets, by the extensions of their names.
var assetTypes = map[string]string{"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8",
	"svg": "image/svg+xml"}

// assetDir is the path below which scripts and styles are served. No namespace can have the name "-".
const assetDir = Prefix + "-/"

// asset is a file that is the same for all users. Its path contains a part of its hash, so browsers may cache it
// without a time limit.
type asset struct {
	kind    string
	content []byte
	packed  []byte // contents compressed by gzip
}

// loadAssets returns the assets of this package, and those in the directory more if it is not nil, by their paths. It
// also returns the path of each asset by the name of its file.
func loadAssets(more fs.FS) (map[string]asset, map[string]string, error) {
	assets, paths := map[string]asset{}, map[string]string{}
	add := func(from fs.FS, name string) error {
		content, err := fs.ReadFile(from, name)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		sum := sha256.Sum256(content)
		base, extension, _ := strings.Cut(path.Base(name), ".")
		to := assetDir + base + "." + hex.EncodeToString(sum[:6]) + "." + extension
		paths[path.Base(name)], assets[to] = to, asset{assetTypes[extension], content, compress(content)}
		return nil
	}
	for _, from := range []fs.FS{assetFiles, more} {
		if from == nil {
			continue
		}
		names, err := fs.Glob(from, "assets/*")
		if err != nil {
			return nil, nil, err
		}
		for _, name := range names {
			if err := add(from, name); err != nil {
				return nil, nil, err
			}
		}
	}
	return assets, paths, nil
}

func compress(content []byte) []byte {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed) // an error occurs only for an invalid level
	_, _ = z.Write(content)                         // writing to a buffer never fails
	_ = z.Close()
	return b.Bytes()
}

func (a asset) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox") // applies if a browser shows the icon as a page
	h.Set("Vary", "Accept-Encoding")
	body := a.content
	if accepts(r) {
		h.Set("Content-Encoding", "gzip")
		body = a.packed
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // an error means that the client has closed the connection
}

// accepts reports whether the client can read gzip.
func accepts(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, quality, _ := strings.Cut(strings.TrimSpace(part), ";")
		if name == "gzip" && strings.ReplaceAll(quality, " ", "") != "q=0" {
			return true
		}
	}
	return false
}
