"""The published formulas once more, by plain loops over Python numbers. Slow, obvious, and shared with nobody.

All take anchors and references as lists of lists of floats, normalised or not as the case wants, and a list of
(anchor, reference) pairs that are the same picture.
"""

from math import exp, log, sqrt


def unit(vector):
    length = sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def distance(x, y):
    return sqrt(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))


def kinds(labels, reference_labels, same, a):
    """The references that are positives and negatives of anchor a."""
    there = [r for r in range(len(reference_labels)) if (a, r) not in same]
    positives = [r for r in there if reference_labels[r] == labels[a]]
    return positives, [r for r in there if reference_labels[r] != labels[a]]


def average(values):
    return sum(values) / len(values) if values else 0.0


def contrastive(x, labels, y, reference_labels, same, margin=0.5):
    total = 0.0
    for a in range(len(x)):
        positives, negatives = kinds(labels, reference_labels, same, a)
        total += sum(1 - dot(x[a], y[p]) for p in positives if dot(x[a], y[p]) < 1 - 1e-5)
        total += sum(dot(x[a], y[n]) for n in negatives if dot(x[a], y[n]) > margin)
    return total / len(x)


def contrastive_distance(x, labels, y, reference_labels, same, positive_margin=0.0, negative_margin=0.5):
    pull, push = [], []
    for a in range(len(x)):
        positives, negatives = kinds(labels, reference_labels, same, a)
        pull += [distance(x[a], y[p]) - positive_margin for p in positives]
        push += [negative_margin - distance(x[a], y[n]) for n in negatives]
    return average([v for v in pull if v > 0]) + average([v for v in push if v > 0])


def triplet(x, labels, y, reference_labels, same, margin=0.1):
    terms = []
    for a in range(len(x)):
        positives, negatives = kinds(labels, reference_labels, same, a)
        terms += [distance(x[a], y[p]) - distance(x[a], y[n]) + margin for p in positives for n in negatives]
    return average([v for v in terms if v > 0])


def multi_similarity(x, labels, y, reference_labels, same, alpha=2.0, beta=40.0, base=0.5, mining=None):
    total = 0.0
    for a in range(len(x)):
        positives, negatives = kinds(labels, reference_labels, same, a)
        positive, negative = [dot(x[a], y[p]) for p in positives], [dot(x[a], y[n]) for n in negatives]
        if mining is not None:
            hard_positive = [s for s in positive if negative and s < max(negative) + mining]
            hard_negative = [s for s in negative if positive and s > min(positive) - mining]
            positive, negative = hard_positive, hard_negative
        total += log(1 + sum(exp(-alpha * (s - base)) for s in positive)) / alpha
        total += log(1 + sum(exp(beta * (s - base)) for s in negative)) / beta
    return total / len(x)


def margin(x, labels, y, reference_labels, same, margin=0.2, beta=1.2):
    terms = []
    for a in range(len(x)):
        positives, negatives = kinds(labels, reference_labels, same, a)
        for p in positives:
            for n in negatives:
                terms += [margin + distance(x[a], y[p]) - beta, margin + beta - distance(x[a], y[n])]
    return average([v for v in terms if v > 0])


def lifted_structure(x, labels, y, reference_labels, same, positive_margin=0.0, negative_margin=1.0):
    total = 0.0
    for a in range(len(x)):
        positives, negatives = kinds(labels, reference_labels, same, a)
        if positives and negatives:
            pull = log(sum(exp(distance(x[a], y[p]) - positive_margin) for p in positives))
            push = log(sum(exp(negative_margin - distance(x[a], y[n])) for n in negatives))
            total += max(0.0, pull + push)
    return total / len(x)


def lifted_structure_song(x, labels, y, reference_labels, same, margin=1.0):
    total, pairs = 0.0, 0
    for i in range(len(x)):
        positives, negatives = kinds(labels, reference_labels, same, i)
        for j in positives:
            pairs += 1
            rivals = sum(exp(margin - distance(x[i], y[k])) for k in negatives)
            for other in range(len(x)):  # the negatives of j
                if labels[other] != reference_labels[j]:
                    rivals += exp(margin - distance(x[other], y[j]))
            if rivals > 0:
                total += max(0.0, log(rivals) + distance(x[i], y[j])) ** 2
    return total / (2 * pairs) if pairs else 0.0


def n_pair(x, labels, y, reference_labels, same, scale=1.0):
    anchors, partners = [], []
    for a in range(len(x)):
        positives, _ = kinds(labels, reference_labels, same, a)
        if positives and labels[a] not in [labels[b] for b in anchors]:
            anchors.append(a)
            partners.append(positives[0])
    terms = []
    for i, a in enumerate(anchors):
        own = dot(x[a], y[partners[i]])
        terms.append(log(1 + sum(exp(scale * (dot(x[a], y[p]) - own)) for j, p in enumerate(partners) if j != i)))
    return average(terms)


def circle(x, labels, y, reference_labels, same, scale=80.0, relaxation=0.4, weights_of=None):
    """weights_of: the vectors (x, y) that the weights are computed from, if not the same: they are held constant."""
    u, v = weights_of or (x, y)
    terms = []
    for a in range(len(x)):
        positives, negatives = kinds(labels, reference_labels, same, a)
        if positives and negatives:
            pull = sum(
                exp(-scale * max(0.0, 1 + relaxation - dot(u[a], v[p])) * (dot(x[a], y[p]) - 1 + relaxation))
                for p in positives
            )
            push = sum(
                exp(scale * max(0.0, dot(u[a], v[n]) + relaxation) * (dot(x[a], y[n]) - relaxation)) for n in negatives
            )
            terms.append(log(1 + pull * push))
    return average([t for t in terms if t > 0])


def proxy_anchor(x, labels, proxies, margin=0.1, sharpness=32.0):
    classes = range(len(proxies))
    pull = push = 0.0
    for c in classes:
        positive = [dot(x[i], proxies[c]) for i in range(len(x)) if labels[i] == c]
        negative = [dot(x[i], proxies[c]) for i in range(len(x)) if labels[i] != c]
        pull += log(1 + sum(exp(-sharpness * (s - margin)) for s in positive))
        push += log(1 + sum(exp(sharpness * (s + margin)) for s in negative))
    return pull / len(set(labels)) + push / len(proxies)


def proxy_nca(x, labels, proxies, scale=1.0):
    terms = []
    for i, label in enumerate(labels):
        weight = [exp(-scale * distance(x[i], proxy) ** 2) for proxy in proxies]
        terms.append(-log(weight[label] / sum(w for c, w in enumerate(weight) if c != label)))
    return average(terms)


def proxy_nca_plus_plus(x, labels, proxies, temperature=0.11):
    """By distances: a temperature T on the cosine is 2T on the squared distance."""
    terms = []
    for i, label in enumerate(labels):
        weight = [exp(-(distance(x[i], proxy) ** 2) / (2 * temperature)) for proxy in proxies]
        terms.append(-log(weight[label] / sum(weight)))
    return average(terms)


def soft_triple(x, labels, centres, scale=20.0, gamma=0.1, merge=0.2, margin=0.01):
    """centres[c][k]: the k-th centre of class c."""
    terms = []
    for i, label in enumerate(labels):
        scores = []
        for c, own in enumerate(centres):
            weight = [exp(dot(x[i], w) / gamma) for w in own]
            similarity = sum(q * dot(x[i], w) for q, w in zip(weight, own, strict=True)) / sum(weight)
            scores.append(exp(scale * (similarity - (margin if c == label else 0.0))))
        terms.append(-log(scores[label] / sum(scores)))
    count = len(centres[0])
    spread = 0.0
    for own in centres:
        for k in range(count):
            for other in range(k + 1, count):
                spread += sqrt(2 + 1e-5 - 2 * dot(own[k], own[other]))
    return average(terms) + (merge * spread / (len(centres) * count * (count - 1)) if count > 1 else 0.0)
