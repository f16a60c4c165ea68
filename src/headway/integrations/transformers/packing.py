class PackingCollator:
    pass


def packed(m):
    pass
