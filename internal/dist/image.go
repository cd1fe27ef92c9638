package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// tree is the file tree of an image for one architecture. arch is Go's name of the architecture, and dir the directory
// of the tree.
type tree struct{ arch, dir string }

// Media types of the OCI image specification, version 1.1 (opencontainers/image-spec: descriptor.md, manifest.md,
// config.md, image-index.md). An image with one layer needs only these types.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// platform is the processor architecture and the operating system of an image, with the names that Go uses.
type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// descriptor refers to a blob of an OCI image layout. It contains the media type, the digest ("sha256:" and hexadecimal
// digits) and the size in bytes.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// index is a list of manifests: in index.json it lists the image index of the archive, and the image index lists one
// manifest for each platform.
type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

// manifest lists the configuration and the layers of an image for one platform.
type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

// config is the configuration of an image. The capitalized JSON names are prescribed by the OCI specification.
type config struct {
	platform
	Created time.Time `json:"created"`
	Config  struct {
		Entrypoint []string `json:"Entrypoint"`
		Env        []string `json:"Env"`
	} `json:"config"`
	// RootFS lists the digests of the uncompressed layers.
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// layout collects the files of an OCI image layout. The map files contains their contents by path in the archive.
type layout struct{ files map[string][]byte }

// digest returns the SHA-256 hash of data in hexadecimal.
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// blob adds data to the layout, in a file that is named by its digest. It returns a descriptor of the data.
func (l *layout) blob(mediaType string, data []byte) descriptor {
	name := digest(data)
	l.files["blobs/sha256/"+name] = data
	return descriptor{MediaType: mediaType, Digest: "sha256:" + name, Size: len(data)}
}

// json adds the JSON encoding of v to the layout and returns a descriptor of the encoding.
func (l *layout) json(mediaType string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	return l.blob(mediaType, data), err
}

// writeImage writes an archive with an OCI image layout, which contains one image for each element of trees. `podman
// load`, `docker load` and `skopeo copy oci-archive:FILE` can read the archive. tag is the name of the image, and when
// is the modification time of all files.
func writeImage(w io.Writer, tag string, trees []tree, when time.Time) error {
	l := &layout{files: make(map[string][]byte)}
	all := index{SchemaVersion: 2, MediaType: typeIndex}
	for _, t := range trees {
		d, err := l.add(t, when)
		if err != nil {
			return fmt.Errorf("write image for %s: %w", t.arch, err)
		}
		all.Manifests = append(all.Manifests, d)
	}
	// The image index, which lists the platforms, is stored as a blob. The file index.json refers to this blob, and its
	// annotation states the tag of the image.
	inner, err := l.json(typeIndex, all)
	if err != nil {
		return err
	}
	inner.Annotations = map[string]string{"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": tag}
	top, err := json.Marshal(index{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{inner}})
	if err != nil {
		return err
	}
	l.files["index.json"] = top
	l.files["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	return l.write(w, when)
}

// add adds an image with the files of t to the layout and returns a descriptor of its manifest.
func (l *layout) add(t tree, when time.Time) (descriptor, error) {
	// Two digests of the layer are needed: the configuration contains the digest before compression, and the manifest
	// contains the digest of the compressed layer.
	var plain bytes.Buffer
	if err := writeTree(&plain, t.dir, when); err != nil {
		return descriptor{}, err
	}
	var packed bytes.Buffer
	// the header of the gzip data contains neither a name nor a time
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return descriptor{}, err
	}
	if _, err := z.Write(plain.Bytes()); err != nil {
		return descriptor{}, err
	}
	if err := z.Close(); err != nil {
		return descriptor{}, err
	}
	c := config{platform: platform{t.arch, "linux"}, Created: when}
	c.Config.Entrypoint = []string{"/usr/bin/artifactfs"}
	c.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{"sha256:" + digest(plain.Bytes())}
	configuration, err := l.json(typeConfig, c)
	if err != nil {
		return descriptor{}, err
	}
	d, err := l.json(typeManifest, manifest{2, typeManifest, configuration,
		[]descriptor{l.blob(typeLayer, packed.Bytes())}})
	d.Platform = &c.platform
	return d, err
}

// write writes the layout as a tar archive. The modification time of all files is when.
func (l *layout) write(w io.Writer, when time.Time) error {
	var names []string
	for name := range l.files {
		names = append(names, name)
	}
	// The names are sorted, because the iteration order of a map is random and the same input must produce the same
	// bytes.
	slices.Sort(names)
	out := tar.NewWriter(w)
	for _, name := range names {
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(l.files[name])), ModTime: when, Format: tar.FormatPAX}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := out.Write(l.files[name]); err != nil {
			return err
		}
	}
	return out.Close()
}

// writeTree writes the files below dir as a tar archive. All files belong to root, and each directory precedes its
// files.
func writeTree(w io.Writer, dir string, when time.Time) error {
	out := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		h := &tar.Header{Name: filepath.ToSlash(name), Mode: int64(info.Mode().Perm()), ModTime: when, Format: tar.FormatPAX}
		switch {
		case e.IsDir():
			// a fixed mode, so that the umask of the build has no effect
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, h.Name+"/", 0o755
		case info.Mode()&fs.ModeSymlink != 0:
			h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
			if h.Linkname, err = os.Readlink(path); err != nil {
				return err
			}
		default:
			h.Typeflag, h.Size = tar.TypeReg, info.Size()
		}
		// Only regular files have contents in the archive.
		if err := out.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(out, f)
		return err
	})
	if err != nil {
		return err
	}
	return out.Close()
}
